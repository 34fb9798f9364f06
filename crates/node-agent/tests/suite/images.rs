//! Verification of images.

use std::fs::{self, File, FileTimes};

use controller_api::image::Manifest;
use node_agent::image::{ImageCache, ImageError};

#[test]
fn an_image_with_matching_digests_is_accepted() {
    let scratch = tempfile::tempdir().unwrap();
    let order = crate::common::image(scratch.path());
    let checked = ImageCache::open(scratch.path().join("known")).verify(&order).unwrap();
    assert_eq!(checked.root, scratch.path().join("root.ext4"));
    assert_eq!(checked.command_line, "quiet");
}

#[test]
fn a_manifest_with_another_digest_is_rejected() {
    let scratch = tempfile::tempdir().unwrap();
    let mut order = crate::common::image(scratch.path());
    order.digest = "0".repeat(64);
    let error = ImageCache::open(scratch.path().join("known")).verify(&order).unwrap_err();
    assert!(matches!(error, ImageError::ManifestMismatch { .. }), "{error}");
}

#[test]
fn a_changed_file_is_rejected_with_both_digests() {
    let scratch = tempfile::tempdir().unwrap();
    let order = crate::common::image(scratch.path());
    let mut images = ImageCache::open(scratch.path().join("known"));
    images.verify(&order).unwrap();
    fs::write(scratch.path().join("root.ext4"), "another disk").unwrap();
    let error = images.verify(&order).unwrap_err().to_string();
    assert!(
        error.starts_with("the SHA-256 digest of root.ext4 must be ") && error.contains(", got "),
        "{error}"
    );
}

#[test]
fn checksums_are_cached_over_restarts() {
    let scratch = tempfile::tempdir().unwrap();
    let (known, root) = (scratch.path().join("known"), scratch.path().join("root.ext4"));
    let order = crate::common::image(scratch.path());
    ImageCache::open(known.clone()).verify(&order).unwrap();
    // Same inode, size and time, so that the change goes unnoticed: shows that the file is not read again.
    let before = fs::metadata(&root).unwrap().modified().unwrap();
    fs::write(&root, "b root disk").unwrap();
    File::options()
        .write(true)
        .open(&root)
        .unwrap()
        .set_times(FileTimes::new().set_modified(before))
        .unwrap();
    ImageCache::open(known.clone()).verify(&order).unwrap();
    // Without the cache, it is read.
    fs::remove_file(&known).unwrap();
    assert!(matches!(ImageCache::open(known).verify(&order), Err(ImageError::ChecksumMismatch { .. })));
}

#[test]
fn a_manifest_cannot_name_files_in_other_directories() {
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
