//! The file with the alias GUIDs of ports.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use fabric_model::intent::{Alias, PortAliases};
use ib_wire::{Guid, PartitionNumber};
use serde::Deserialize;

/// A list of aliases.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AliasFile {
    #[serde(default)]
    alias: Vec<AliasEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AliasEntry {
    /// GUID of the port.
    port: Guid,
    /// Index in its GUID table, from 1 on.
    index: u8,
    guid: Guid,
    partitions: BTreeSet<PartitionNumber>,
}

/// Reads the aliases from a TOML file.
pub fn read(path: &Path) -> anyhow::Result<PortAliases> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let file: AliasFile = toml::from_str(&text).with_context(|| format!("in {}", path.display()))?;
    let mut aliases = PortAliases::new();
    for AliasEntry { port, index, guid, partitions } in file.alias {
        let before = aliases.entry(port).or_default().insert(index, Alias { guid, partitions });
        ensure!(before.is_none(), "in {}: port {port} has two aliases with index {index}", path.display());
    }
    Ok(aliases)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> anyhow::Result<PortAliases> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("aliases.toml");
        fs::write(&path, text).unwrap();
        read(&path)
    }

    #[test]
    fn a_port_has_aliases_by_index() {
        let entry = |index, guid| {
            format!(
                "[[alias]]\nport = \"0x7\"\nindex = {index}\nguid = \"{guid}\"\npartitions = [1, 0x7fff]\n"
            )
        };
        let aliases = written(&(entry(1, "0xa1") + &entry(9, "0xa9"))).unwrap();
        let table = &aliases[&Guid::from_wire(7).unwrap()];
        assert_eq!(table.keys().copied().collect::<Vec<u8>>(), [1, 9]);
        assert_eq!(table[&9].guid, Guid::from_wire(0xa9).unwrap());
        assert_eq!(table[&1].partitions.len(), 2);
        let twice = format!("{:#}", written(&(entry(1, "0xa1") + &entry(1, "0xa2"))).unwrap_err());
        assert!(twice.ends_with("has two aliases with index 1"), "{twice}");
    }

    #[test]
    fn errors_name_the_file_and_the_field() {
        for (text, expected) in [
            ("[[alias]]\nport = \"0x7\"\n", "missing field `index`"),
            ("[[aliases]]\n", "unknown field `aliases`"),
            ("[[alias]]\nport = \"0x0\"\nindex = 1\nguid = \"0x1\"\npartitions = []\n", "port"),
        ] {
            let error = format!("{:#}", written(text).unwrap_err());
            assert!(error.contains(expected) && error.contains("aliases.toml"), "{error}");
        }
        assert_eq!(written("").unwrap(), PortAliases::new());
    }
}
