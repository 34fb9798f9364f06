//! Verification of images: an image is used only if all its files match the digests of the spec and the manifest.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use controller_api::agent::ImageSpec;
use controller_api::image::{DiskFormat, ImageFile, Manifest};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

/// Most bytes of `image.json`.
const MANIFEST_BYTES_MAX: u64 = 64 * 1024;

/// Most files in the checksum cache; beyond that it is cleared.
const CACHED_FILES_MAX: usize = 1024;

/// Most bytes of the checksum cache.
const CACHE_BYTES_MAX: u64 = 1024 * 1024;

/// Size of the chunks in which files are read.
const PIECE_BYTES: usize = 1024 * 1024;

/// Paths of a verified image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedImage {
    pub root: PathBuf,
    pub root_format: DiskFormat,
    pub kernel: PathBuf,
    pub initrd: PathBuf,
    /// Kernel parameters that the image adds.
    pub command_line: String,
}

/// Why an image cannot be used.
#[derive(Debug, Error)]
pub enum ImageError {
    #[error("cannot read {}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("the SHA-256 digest of image.json must be {expected}, got {found}")]
    ManifestMismatch {
        found: String,
        /// From the VM spec.
        expected: String,
    },
    #[error("image.json is malformed: {0}")]
    Malformed(serde_json::Error),
    #[error("files in image.json must be plain file names, got {0:?}")]
    InvalidFileName(String),
    #[error("the SHA-256 digest of {file} must be {expected}, got {found}")]
    ChecksumMismatch {
        file: String,
        found: String,
        /// From the manifest.
        expected: String,
    },
}

/// Verifies images, and caches checksums so that a file is read once, not for every virtual machine. An entry is valid while inode,
/// size and modification time are unchanged.
#[derive(Debug)]
pub struct ImageCache {
    path: PathBuf,
    cached: BTreeMap<PathBuf, CachedChecksum>,
}

/// Identity and checksum of a file that was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct CachedChecksum {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    sha256: String,
}

impl ImageCache {
    /// Loads the cache. An unreadable cache counts as empty: files are read again.
    pub fn open(path: PathBuf) -> Self {
        let cached = match durable_file::read(&path, CACHE_BYTES_MAX) {
            Ok(Some(bytes)) => serde_json::from_slice(&bytes).unwrap_or_default(),
            _ => BTreeMap::new(),
        };
        Self { path, cached }
    }

    /// Verifies an image. Blocks for seconds if a file is not in the cache.
    pub fn verify(&mut self, order: &ImageSpec) -> Result<VerifiedImage, ImageError> {
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
        // A file that changed while it was read is not cached.
        if CachedChecksum::of(&fs::metadata(path)?) == before {
            if self.cached.len() >= CACHED_FILES_MAX {
                self.cached.clear();
            }
            self.cached.insert(path.to_owned(), CachedChecksum { sha256: sha256.clone(), ..before });
            let list = serde_json::to_vec(&self.cached).expect("paths of images are UTF-8");
            if let Err(error) = durable_file::replace(&self.path, &list) {
                tracing::warn!("cannot store checksums in {}: {error}", self.path.display());
            }
        }
        Ok(sha256)
    }
}

/// Reads the manifest `image.json` and checks its digest against the spec.
pub fn manifest(order: &ImageSpec) -> Result<Manifest, ImageError> {
    let manifest_path = order.directory.join("image.json");
    let unreadable = |source| ImageError::Unreadable { path: manifest_path.clone(), source };
    let bytes = durable_file::read(&manifest_path, MANIFEST_BYTES_MAX).map_err(unreadable)?;
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

/// Lower-case hexadecimal digits, as printed by `sha256sum`.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
