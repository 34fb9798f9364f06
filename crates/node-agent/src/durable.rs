//! Files that survive whatever happens once they were written.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Writes a file whole or not at all, for its owner only. When this returns, it is on disk.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
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
    kill_point("before-open", path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    kill_point("after-open", path);
    let written = (|| {
        let (first, rest) = bytes.split_at(bytes.len() / 2);
        file.write_all(first)?;
        kill_point("half-written", path);
        file.write_all(rest)?;
        kill_point("after-write", path);
        file.sync_all()?;
        kill_point("after-sync", path);
        fs::rename(&beside, path)
    })();
    if let Err(error) = written {
        // On a full disk, what was written so far only makes it worse.
        let _ = fs::remove_file(&beside);
        return Err(error);
    }
    kill_point("after-rename", path);
    File::open(directory)?.sync_all()?;
    kill_point("after-directory-sync", path);
    Ok(())
}

/// Places at which a test can end the process: `HEDDLE_KILL_AT=STEP:FILE`.
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

/// Ends the process as kill -9 would, if a test asked for it here. Release builds do not ask.
pub fn kill_point(step: &str, path: &Path) {
    if !cfg!(debug_assertions) {
        return;
    }
    debug_assert!(KILL_POINTS.contains(&step), "{step} is not in the list");
    let here = || format!("{step}:{}", path.file_name().unwrap_or_default().to_string_lossy());
    if std::env::var("HEDDLE_KILL_AT").is_ok_and(|at| at == here()) {
        std::process::abort();
    }
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
        replace(&path, b"old").unwrap();
        fs::write(scratch.path().join("orders.new"), b"half of the n").unwrap();
        assert_eq!(read(&path, 100).unwrap().unwrap(), b"old");
        replace(&path, b"new").unwrap();
        assert_eq!(read(&path, 100).unwrap().unwrap(), b"new");
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 1);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_that_is_too_long_is_not_read() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("long");
        replace(&path, &[0; 11]).unwrap();
        assert_eq!(read(&path, 11).unwrap().unwrap().len(), 11);
        assert_eq!(read(&path, 10).unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert!(read(&scratch.path().join("none"), 10).unwrap().is_none());
    }
}
