//! ImageCache are what their digest says, or they are not used.

use std::fs::{self, File, FileTimes};

use controller_api::image::Manifest;
use node_agent::image::{ImageCache, ImageError};

#[test]
fn an_image_is_taken_if_every_byte_is_what_it_says() {
    let scratch = tempfile::tempdir().unwrap();
    let order = crate::common::image(scratch.path());
    let checked = ImageCache::open(scratch.path().join("known")).verify(&order).unwrap();
    assert_eq!(checked.root, scratch.path().join("root.ext4"));
    assert_eq!(checked.command_line, "quiet");
}

#[test]
fn another_description_than_ordered_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let mut order = crate::common::image(scratch.path());
    order.digest = "0".repeat(64);
    let error = ImageCache::open(scratch.path().join("known")).verify(&order).unwrap_err();
    assert!(matches!(error, ImageError::ManifestMismatch { .. }), "{error}");
}

#[test]
fn a_changed_file_is_refused_with_both_checksums() {
    let scratch = tempfile::tempdir().unwrap();
    let order = crate::common::image(scratch.path());
    let mut images = ImageCache::open(scratch.path().join("known"));
    images.verify(&order).unwrap();
    fs::write(scratch.path().join("root.ext4"), "another disk").unwrap();
    let error = images.verify(&order).unwrap_err().to_string();
    assert!(
        error.starts_with("root.ext4 has checksum ") && error.contains(", its manifest says "),
        "{error}"
    );
}

#[test]
fn a_file_is_read_once_also_over_a_restart() {
    let scratch = tempfile::tempdir().unwrap();
    let (known, root) = (scratch.path().join("known"), scratch.path().join("root.ext4"));
    let order = crate::common::image(scratch.path());
    ImageCache::open(known.clone()).verify(&order).unwrap();
    // Same file, size and time: whoever does that on purpose owns the image. It shows that the file is not read.
    let before = fs::metadata(&root).unwrap().modified().unwrap();
    fs::write(&root, "b root disk").unwrap();
    File::options()
        .write(true)
        .open(&root)
        .unwrap()
        .set_times(FileTimes::new().set_modified(before))
        .unwrap();
    ImageCache::open(known.clone()).verify(&order).unwrap();
    // Without what is known, it is read.
    fs::remove_file(&known).unwrap();
    assert!(matches!(ImageCache::open(known).verify(&order), Err(ImageError::ChecksumMismatch { .. })));
}

#[test]
fn a_description_cannot_name_files_elsewhere() {
    let scratch = tempfile::tempdir().unwrap();
    crate::common::image(scratch.path());
    let text = fs::read(scratch.path().join("image.json")).unwrap();
    for elsewhere in ["../secret", "/etc/passwd", "..", ""] {
        let mut manifest: Manifest = serde_json::from_slice(&text).unwrap();
        manifest.kernel.file = elsewhere.to_owned();
        let order = crate::common::describe(scratch.path(), &manifest);
        let error = ImageCache::open(scratch.path().join("known")).verify(&order).unwrap_err();
        assert!(matches!(error, ImageError::InvalidFileName(_)), "{elsewhere}: {error}");
    }
}
