//! Images are what their digest says, or they are not used.

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
const KNOWN_MAX: usize = 1024;

/// Longest list of files found right, in bytes.
const KNOWN_BYTES_MAX: u64 = 1024 * 1024;

/// Files are read in pieces of this size.
const PIECE_BYTES: usize = 1024 * 1024;

/// An image whose every byte is what the order says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedImage {
    /// Its root disk.
    pub root: PathBuf,
    /// How that is written.
    pub root_format: DiskFormat,
    /// Its kernel.
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
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The description is another one than ordered.
    #[error("image.json has checksum {found}, the order says {ordered}")]
    OtherManifest {
        /// What it has.
        found: String,
        /// What the order says.
        ordered: String,
    },
    /// The description makes no sense.
    #[error("image.json: {0}")]
    Malformed(serde_json::Error),
    /// The description names a file elsewhere.
    #[error("image.json names {0:?}, which is not the name of a file beside it")]
    NotBeside(String),
    /// A file is not what the description says.
    #[error("{file} has checksum {found}, its manifest says {said}")]
    OtherFile {
        /// Its name.
        file: String,
        /// What it has.
        found: String,
        /// What the description says.
        said: String,
    },
}

/// Files that were found right, so that they are read once and not for every virtual machine.
#[derive(Debug)]
pub struct Images {
    path: PathBuf,
    known: BTreeMap<PathBuf, Known>,
}

/// A file that was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    sha256: String,
}

impl Images {
    /// With what was found out before. A list that cannot be read is an empty one: files are read again.
    pub fn open(path: PathBuf) -> Self {
        let known = match durable::read(&path, KNOWN_BYTES_MAX) {
            Ok(Some(bytes)) => serde_json::from_slice(&bytes).unwrap_or_default(),
            _ => BTreeMap::new(),
        };
        Self { path, known }
    }

    /// Checks an image, reading files whose checksum is not known. Blocks for seconds then.
    pub fn check(&mut self, order: &ImageOrder) -> Result<CheckedImage, ImageError> {
        let manifest = manifest(order)?;
        Ok(CheckedImage {
            kernel: self.check_file(&order.directory, &manifest.kernel)?,
            initrd: self.check_file(&order.directory, &manifest.initrd)?,
            root: self.check_file(&order.directory, &manifest.root)?,
            root_format: manifest.root_format,
            command_line: manifest.command_line,
        })
    }

    fn check_file(&mut self, directory: &Path, said: &ImageFile) -> Result<PathBuf, ImageError> {
        if said.file.is_empty() || said.file.contains('/') || said.file.starts_with('.') {
            return Err(ImageError::NotBeside(said.file.clone()));
        }
        let path = directory.join(&said.file);
        let found =
            self.checksum(&path).map_err(|source| ImageError::Unreadable { path: path.clone(), source })?;
        if !found.eq_ignore_ascii_case(&said.sha256) {
            let (file, said) = (said.file.clone(), said.sha256.clone());
            return Err(ImageError::OtherFile { file, found, said });
        }
        Ok(path)
    }

    fn checksum(&mut self, path: &Path) -> io::Result<String> {
        let mut file = File::open(path)?;
        let before = Known::of(&file.metadata()?);
        if let Some(known) = self.known.get(path)
            && *known == (Known { sha256: known.sha256.clone(), ..before.clone() })
        {
            return Ok(known.sha256.clone());
        }
        let sha256 = checksum(&mut file)?;
        // Who writes a file while it is read gets no lasting verdict.
        if Known::of(&fs::metadata(path)?) == before {
            if self.known.len() >= KNOWN_MAX {
                self.known.clear();
            }
            self.known.insert(path.to_owned(), Known { sha256: sha256.clone(), ..before });
            let list = serde_json::to_vec(&self.known).expect("paths of images came in as JSON");
            if let Err(error) = durable::write(&self.path, &list) {
                tracing::warn!("cannot keep checksums in {}: {error}", self.path.display());
            }
        }
        Ok(sha256)
    }
}

/// The description of an image, if it is the one that was ordered.
pub fn manifest(order: &ImageOrder) -> Result<Manifest, ImageError> {
    let manifest_path = order.directory.join("image.json");
    let unreadable = |source| ImageError::Unreadable { path: manifest_path.clone(), source };
    let bytes = durable::read(&manifest_path, MANIFEST_BYTES_MAX).map_err(unreadable)?;
    let bytes = bytes.ok_or_else(|| unreadable(io::ErrorKind::NotFound.into()))?;
    let found = hex(&Sha256::digest(&bytes));
    if !found.eq_ignore_ascii_case(&order.digest) {
        return Err(ImageError::OtherManifest { found, ordered: order.digest.clone() });
    }
    serde_json::from_slice(&bytes).map_err(ImageError::Malformed)
}

impl Known {
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
