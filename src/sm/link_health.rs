//! The file with the limits of link health.

use std::fs;
use std::path::Path;

use anyhow::Context;
use subnet_manager::LinkHealthSettings;

/// Reads the limits from a TOML file. Those that it does not name have their defaults.
pub fn read(path: &Path) -> anyhow::Result<LinkHealthSettings> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("in {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_file_has_the_defaults() {
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/link-health.toml");
        assert_eq!(read(&example).unwrap(), LinkHealthSettings::default());
    }

    #[test]
    fn errors_name_the_file_the_field_and_the_range() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("limits.toml");
        for (text, expected) in [
            ("flaps = 5000", "flaps must be between 0 and 1000, got 5000"),
            ("flap = 5", "unknown field `flap`"),
            ("flaps = -1", "invalid value"),
        ] {
            fs::write(&path, text).unwrap();
            let error = format!("{:#}", read(&path).unwrap_err());
            assert!(error.contains(expected) && error.contains("limits.toml"), "{error}");
        }
    }
}
