//! Files that survive crashes and power failures once they are written.
//!
//! [`replace`] is the one way in which Heddle replaces a file: temporary file, fsync, rename, fsync of the directory. Files
//! that external tools write are moved into place by [`install`], its second half.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Mode of files that only their owner may read.
pub const PRIVATE: u32 = 0o600;

/// Mode of files that every user may read.
pub const PUBLIC: u32 = 0o644;

/// Atomically replaces the content of a file, which only its owner may read. When it returns, the content is on disk; after
/// an error or a crash, the file has either the old or the new content.
///
/// The temporary file is `path` with the suffix `.new`. Concurrent calls for the same path must be serialized by the caller.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_with_mode(path, bytes, PRIVATE)
}

/// [`replace`], with another mode.
pub fn replace_with_mode(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let Some(name) = path.file_name() else {
        return Err(io::Error::new(ErrorKind::InvalidInput, "the path has no file name"));
    };
    let mut temporary = name.to_owned();
    temporary.push(".new");
    let temporary = path.with_file_name(temporary);
    // A leftover of a killed writer may have another mode.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    kill_point("before-open", path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
    kill_point("after-open", path);
    let written = (|| {
        let (first, rest) = bytes.split_at(bytes.len() / 2);
        file.write_all(first)?;
        kill_point("half-written", path);
        file.write_all(rest)?;
        kill_point("after-write", path);
        install(&temporary, path)
    })();
    if written.is_err() {
        // Frees the space on a full disk. Fails if the error came after the rename.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Atomically moves a complete file from `temporary` to `path`, which must be in the same directory tree and file system. When
/// it returns, content and name are on disk. After an error, `temporary` may still exist.
pub fn install(temporary: &Path, path: &Path) -> io::Result<()> {
    File::open(temporary)?.sync_all()?;
    kill_point("after-sync", path);
    fs::rename(temporary, path)?;
    kill_point("after-rename", path);
    // The rename is durable only after an fsync of the directory.
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory)?.sync_all()?;
    kill_point("after-directory-sync", path);
    Ok(())
}

/// Steps at which a test can kill the process: `HEDDLE_KILL_AT=STEP:FILE`.
pub const KILL_POINTS: [&str; 8] = [
    "before-open",
    "after-open",
    "half-written",
    "after-write",
    "after-sync",
    "after-rename",
    "after-directory-sync",
    "before-reply",
];

/// Aborts the process if a test requested it at this step by `HEDDLE_KILL_AT`. Does nothing in release builds.
pub fn kill_point(step: &str, path: &Path) {
    if !cfg!(debug_assertions) {
        return;
    }
    debug_assert!(KILL_POINTS.contains(&step), "{step} is not in KILL_POINTS");
    let here = || format!("{step}:{}", path.file_name().unwrap_or_default().to_string_lossy());
    if std::env::var("HEDDLE_KILL_AT").is_ok_and(|at| at == here()) {
        std::process::abort();
    }
}

/// Reads a file; `None` if it does not exist. Fails with [`ErrorKind::FileTooLarge`] if it has more than `bytes_max` bytes.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut bytes = Vec::new();
    if file.take(bytes_max + 1).read_to_end(&mut bytes)? as u64 > bytes_max {
        return Err(io::Error::new(
            ErrorKind::FileTooLarge,
            format!("the file must have at most {bytes_max} bytes"),
        ));
    }
    Ok(Some(bytes))
}

/// Removes a file, or a directory with its content. Succeeds if it does not exist.
pub fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_leftover_of_a_killed_writer_is_replaced() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("spec");
        replace(&path, b"old").unwrap();
        fs::write(scratch.path().join("spec.new"), b"half of the n").unwrap();
        assert_eq!(read(&path, 100).unwrap().unwrap(), b"old");
        replace(&path, b"new").unwrap();
        assert_eq!(read(&path, 100).unwrap().unwrap(), b"new");
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 1);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_has_the_mode_that_was_given() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("address");
        replace_with_mode(&path, b"x", PUBLIC).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        replace(&path, b"y").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_over_the_limit_is_not_read() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("long");
        replace(&path, &[0; 11]).unwrap();
        assert_eq!(read(&path, 11).unwrap().unwrap().len(), 11);
        assert_eq!(read(&path, 10).unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert!(read(&scratch.path().join("none"), 10).unwrap().is_none());
    }
}
