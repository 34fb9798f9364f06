//! ImageCache are what their digest says, or they are not used.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use controller_api::agent::ImageOrder;
use controller_api::image::{DiskFormat, ImageFile, Manifest};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::durable;

/// Longest `image.json`: a few names and checksums.
const MANIFEST_BYTES_MAX: u64 = 64 * 1024;

/// Longest list of files found right; oldest entries are of images long gone.
const CACHED_FILES_MAX: usize = 1024;

/// Longest list of files found right, in bytes.
const CACHE_BYTES_MAX: u64 = 1024 * 1024;

/// Files are read in pieces of this size.
const PIECE_BYTES: usize = 1024 * 1024;

/// An image whose every byte is what the order says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedImage {
    pub root: PathBuf,
    /// How that is written.
    pub root_format: DiskFormat,
    pub kernel: PathBuf,
    /// Its initial file system.
    pub initrd: PathBuf,
    /// What the kernel is told.
    pub command_line: String,
}

/// Why an image is not used.
#[derive(Debug, Error)]
pub enum ImageError {
    /// A file cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    /// The description is another one than expected.
    #[error("image.json has checksum {found}, the order says {expected}")]
    ManifestMismatch {
        found: String,
        /// What the order says.
        expected: String,
    },
    /// The description makes no sense.
    #[error("image.json: {0}")]
    Malformed(serde_json::Error),
    /// The description names a file elsewhere.
    #[error("image.json names {0:?}, which is not the name of a file beside it")]
    InvalidFileName(String),
    /// A file is not what the description says.
    #[error("{file} has checksum {found}, its manifest says {expected}")]
    ChecksumMismatch {
        file: String,
        found: String,
        /// What the description says.
        expected: String,
    },
}

/// Files that were found right, so that they are read once and not for every virtual machine.
#[derive(Debug)]
pub struct ImageCache {
    path: PathBuf,
    cached: BTreeMap<PathBuf, CachedChecksum>,
}

/// A file that was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct CachedChecksum {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    sha256: String,
}

impl ImageCache {
    /// With what was found out before. A list that cannot be read is an empty one: files are read again.
    pub fn open(path: PathBuf) -> Self {
        let cached = match durable::read(&path, CACHE_BYTES_MAX) {
            Ok(Some(bytes)) => serde_json::from_slice(&bytes).unwrap_or_default(),
            _ => BTreeMap::new(),
        };
        Self { path, cached }
    }

    /// Checks an image, reading files whose checksum is not cached. Blocks for seconds then.
    pub fn verify(&mut self, order: &ImageOrder) -> Result<VerifiedImage, ImageError> {
        let manifest = manifest(order)?;
        Ok(VerifiedImage {
            kernel: self.verify_file(&order.directory, &manifest.kernel)?,
            initrd: self.verify_file(&order.directory, &manifest.initrd)?,
            root: self.verify_file(&order.directory, &manifest.root)?,
            root_format: manifest.root_format,
            command_line: manifest.command_line,
        })
    }

    fn verify_file(&mut self, directory: &Path, expected: &ImageFile) -> Result<PathBuf, ImageError> {
        if expected.file.is_empty() || expected.file.contains('/') || expected.file.starts_with('.') {
            return Err(ImageError::InvalidFileName(expected.file.clone()));
        }
        let path = directory.join(&expected.file);
        let found =
            self.checksum(&path).map_err(|source| ImageError::Unreadable { path: path.clone(), source })?;
        if !found.eq_ignore_ascii_case(&expected.sha256) {
            let (file, expected) = (expected.file.clone(), expected.sha256.clone());
            return Err(ImageError::ChecksumMismatch { file, found, expected });
        }
        Ok(path)
    }

    fn checksum(&mut self, path: &Path) -> io::Result<String> {
        let mut file = File::open(path)?;
        let before = CachedChecksum::of(&file.metadata()?);
        if let Some(cached) = self.cached.get(path)
            && *cached == (CachedChecksum { sha256: cached.sha256.clone(), ..before.clone() })
        {
            return Ok(cached.sha256.clone());
        }
        let sha256 = checksum(&mut file)?;
        // Who writes a file while it is read gets no lasting verdict.
        if CachedChecksum::of(&fs::metadata(path)?) == before {
            if self.cached.len() >= CACHED_FILES_MAX {
                self.cached.clear();
            }
            self.cached.insert(path.to_owned(), CachedChecksum { sha256: sha256.clone(), ..before });
            let list = serde_json::to_vec(&self.cached).expect("paths of images came in as JSON");
            if let Err(error) = durable::replace(&self.path, &list) {
                tracing::warn!("cannot keep checksums in {}: {error}", self.path.display());
            }
        }
        Ok(sha256)
    }
}

/// The description of an image, if it is the one that was expected.
pub fn manifest(order: &ImageOrder) -> Result<Manifest, ImageError> {
    let manifest_path = order.directory.join("image.json");
    let unreadable = |source| ImageError::Unreadable { path: manifest_path.clone(), source };
    let bytes = durable::read(&manifest_path, MANIFEST_BYTES_MAX).map_err(unreadable)?;
    let bytes = bytes.ok_or_else(|| unreadable(io::ErrorKind::NotFound.into()))?;
    let found = hex(&Sha256::digest(&bytes));
    if !found.eq_ignore_ascii_case(&order.digest) {
        return Err(ImageError::ManifestMismatch { found, expected: order.digest.clone() });
    }
    serde_json::from_slice(&bytes).map_err(ImageError::Malformed)
}

impl CachedChecksum {
    fn of(file: &fs::Metadata) -> Self {
        let modified = (file.mtime(), file.mtime_nsec());
        Self { device: file.dev(), inode: file.ino(), size: file.size(), modified, sha256: String::new() }
    }
}

fn checksum(file: &mut File) -> io::Result<String> {
    let (mut digest, mut piece) = (Sha256::new(), vec![0; PIECE_BYTES]);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hex(&digest.finalize())),
            length => digest.update(&piece[..length]),
        }
    }
}

/// In lower case, as `sha256sum` prints it.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
