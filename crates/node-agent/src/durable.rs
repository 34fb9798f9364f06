//! Files that survive whatever happens once they were written.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Writes a file whole or not at all, for its owner only. When this returns, it is on disk.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(ErrorKind::InvalidInput, "not the path of a file"));
    };
    let mut beside = name.to_owned();
    beside.push(".new");
    let beside = directory.join(beside);
    // What a killed writer left behind is of no use to anybody, and may have another mode.
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    if let Err(error) = written.and_then(|()| fs::rename(&beside, path)) {
        // On a full disk, what was written so far only makes it worse.
        let _ = fs::remove_file(&beside);
        return Err(error);
    }
    File::open(directory)?.sync_all()
}

/// Reads a file of up to `bytes_max` bytes; `None` if there is none.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut bytes = Vec::new();
    if file.take(bytes_max + 1).read_to_end(&mut bytes)? as u64 > bytes_max {
        return Err(io::Error::new(ErrorKind::FileTooLarge, format!("longer than {bytes_max} bytes")));
    }
    Ok(Some(bytes))
}

/// Removes a file or a directory with everything in it; fine if it is gone already.
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
    fn what_a_killed_writer_left_behind_does_no_harm() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("orders");
        write(&path, b"old").unwrap();
        fs::write(scratch.path().join("orders.new"), b"half of the n").unwrap();
        assert_eq!(read(&path, 100).unwrap().unwrap(), b"old");
        write(&path, b"new").unwrap();
        assert_eq!(read(&path, 100).unwrap().unwrap(), b"new");
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 1);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_that_is_too_long_is_not_read() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("long");
        write(&path, &[0; 11]).unwrap();
        assert_eq!(read(&path, 11).unwrap().unwrap().len(), 11);
        assert_eq!(read(&path, 10).unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert!(read(&scratch.path().join("none"), 10).unwrap().is_none());
    }
}
