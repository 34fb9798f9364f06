//! `heddle image`: manages the images that virtual machines boot from.

use std::fmt::Write;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Subcommand;
use controller_api::Name;
use controller_api::image::{Manifest, NewImage};
use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::Noun;
use super::output::{age, or_dash, print, table};

/// Name of the manifest of an image.
pub const MANIFEST_FILE: &str = "image.json";

/// Longest manifest in bytes; it names three files and a kernel command line.
const MANIFEST_BYTES_MAX: u64 = 64 * 1024;

/// Characters of a digest in tables.
const DIGEST_SHOWN: usize = 12;

/// Commands of `heddle image`. Tenants may only list.
#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Register an image under a name
    ///
    /// Hosts reject the image if a file differs from the checksums that image.json has now. An image of the same name is
    /// replaced for new clusters; existing clusters keep theirs.
    #[command(after_help = "Example:
  heddle image add debian-mpi /var/cache/heddle/images/debian-mpi-0123abcd")]
    Add {
        /// Name of the image
        name: Name,
        /// Directory with image.json, at the same path on every host
        directory: PathBuf,
    },
    /// List images
    #[command(after_help = "Example:
  heddle image list")]
    List,
    /// Unregister an image; its files stay, and existing clusters keep using them
    #[command(after_help = "Example:
  heddle image remove debian-mpi")]
    Remove {
        /// Name of the image
        name: Name,
    },
}

pub async fn run(noun: Noun<ImageCommand>) -> anyhow::Result<ExitCode> {
    let (client, format) = (noun.site.client()?, noun.site.format());
    match noun.command {
        ImageCommand::Add { name, directory } => {
            let image = client.image_add(&describe(name, &directory)?).await?;
            format.print(&image, |image| format!("image {} added", image.name))?;
        }
        ImageCommand::List => {
            let now = Timestamp::now();
            format.print(&client.image_list().await?, |images| {
                let rows = images.iter().map(|image| {
                    let digest = image.digest.chars().take(DIGEST_SHOWN).collect();
                    [
                        image.name.to_string(),
                        digest,
                        if image.infiniband { "infiniband" } else { "ethernet" }.to_owned(),
                        or_dash(image.directory.as_ref()),
                        age(image.created, now),
                    ]
                });
                table(["name", "digest", "adapter", "directory", "age"], rows)
            })?;
        }
        ImageCommand::Remove { name } => {
            client.image_remove(&name).await?;
            if format.is_for_people() {
                print(&format!("image {name} removed"))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the manifest in a directory, checks that its files exist, and computes its digest.
pub fn describe(name: Name, directory: &Path) -> anyhow::Result<NewImage> {
    let place = directory.display();
    let directory =
        directory.canonicalize().with_context(|| format!("cannot open the image directory {place}"))?;
    let path = directory.join(MANIFEST_FILE);
    let file = fs::File::open(&path)
        .with_context(|| format!("{place} is not an image: it has no {MANIFEST_FILE}"))?;
    let mut bytes = Vec::new();
    let place = path.display();
    file.take(MANIFEST_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .with_context(|| format!("cannot read {place}"))?;
    ensure!(bytes.len() as u64 <= MANIFEST_BYTES_MAX, "{place} is longer than {MANIFEST_BYTES_MAX} bytes");
    let manifest: Manifest =
        serde_json::from_slice(&bytes).with_context(|| format!("{place} is not an image manifest"))?;
    for part in [&manifest.root, &manifest.kernel, &manifest.initrd] {
        let is_plain = Path::new(&part.file).file_name().is_some_and(|name| name == part.file.as_str());
        ensure!(is_plain, "{place} names {:?}, which must be a file in the same directory", part.file);
        ensure!(directory.join(&part.file).is_file(), "{place} names {}, which does not exist", part.file);
    }
    let directory = directory.into_os_string().into_string().ok();
    let directory = directory.context("the path of the image is not UTF-8")?;
    Ok(NewImage { name, directory, digest: hexadecimal(&Sha256::digest(&bytes)) })
}

fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        write!(text, "{byte:02x}").expect("a String takes everything");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZEROS: &str = "0000000000000000000000000000000000000000000000000000000000000000";

    fn image(root: &str) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for file in ["root.ext4", "vmlinux", "initrd"] {
            fs::write(directory.path().join(file), file).unwrap();
        }
        let manifest = serde_json::json!({
            "root": {"file": root, "sha256": ZEROS}, "root_format": "raw",
            "kernel": {"file": "vmlinux", "sha256": ZEROS},
            "initrd": {"file": "initrd", "sha256": ZEROS}, "command_line": "quiet",
        });
        fs::write(directory.path().join(MANIFEST_FILE), manifest.to_string()).unwrap();
        directory
    }

    #[test]
    fn the_digest_of_an_image_equals_sha256sum_of_its_manifest() {
        let directory = image("root.ext4");
        let new = describe("debian-mpi".parse().unwrap(), directory.path()).unwrap();
        let printed = std::process::Command::new("sha256sum")
            .arg(directory.path().join(MANIFEST_FILE))
            .output()
            .unwrap();
        let printed = String::from_utf8(printed.stdout).unwrap();
        assert_eq!(Some(new.digest.as_str()), printed.split_whitespace().next());
    }

    #[test]
    fn a_directory_without_an_image_is_rejected() {
        let name = || "x".parse().unwrap();
        for root in ["../root.ext4", "/etc/passwd", "missing", ""] {
            let error = describe(name(), image(root).path()).unwrap_err().to_string();
            assert!(
                error.contains("does not exist") || error.contains("in the same directory"),
                "{root}: {error}"
            );
        }
        let empty = tempfile::tempdir().unwrap();
        let error = describe(name(), empty.path()).unwrap_err().to_string();
        assert!(error.contains(MANIFEST_FILE), "{error}");
        fs::write(empty.path().join(MANIFEST_FILE), "{}").unwrap();
        assert!(describe(name(), empty.path()).is_err());
    }
}
