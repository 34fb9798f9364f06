//! Device profiles on the command line: built-in ones by name, others from TOML files.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use clap::Args;
use fabric_sim::{BuiltInProfile, DeviceCapability, DeviceProfile};
use serde_json::Value;

/// Longest profile file; a complete one has about 1.5 kB.
const PROFILE_BYTES_MAX: u64 = 64 * 1024;

/// The kind of devices to emulate.
#[derive(Clone, Debug, Args)]
pub struct ProfileArgs {
    /// Kind of devices: a built-in profile, which `heddle sim --help` lists, or a TOML file
    #[arg(long, value_name = "NAME|FILE", default_value = BuiltInProfile::Strict.name())]
    pub profile: String,
    /// Let all devices lack a capability, such as outbound-enforcement; may be repeated
    #[arg(long, value_name = "CAPABILITY")]
    pub without: Vec<DeviceCapability>,
}

impl ProfileArgs {
    /// The profile, without the capabilities that devices shall lack.
    pub fn load(&self) -> anyhow::Result<DeviceProfile> {
        let profile = named_or_read(&self.profile)?;
        Ok(self.without.iter().fold(profile, |profile, capability| profile.without(*capability)))
    }

    /// The arguments that select the same profile in another directory.
    pub fn to_arguments(&self) -> anyhow::Result<Vec<String>> {
        let is_file = BuiltInProfile::named(&self.profile).is_none();
        let profile = if is_file {
            std::path::absolute(&self.profile)?.to_string_lossy().into_owned()
        } else {
            self.profile.clone()
        };
        let without = self.without.iter().flat_map(|lacking| ["--without".to_owned(), lacking.to_string()]);
        Ok(["--profile".to_owned(), profile].into_iter().chain(without).collect())
    }
}

fn named_or_read(name: &str) -> anyhow::Result<DeviceProfile> {
    if let Some(built_in) = BuiltInProfile::named(name) {
        return Ok(built_in.profile());
    }
    let path = Path::new(name);
    if !path.exists() {
        bail!("there is neither a profile nor a file called {name}; built-in profiles: {}", names());
    }
    let size = fs::metadata(path).with_context(|| format!("cannot read {name}"))?.len();
    ensure!(size <= PROFILE_BYTES_MAX, "{name} must have at most {PROFILE_BYTES_MAX} bytes, got {size}");
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
    parse(&text).with_context(|| format!("in {name}"))
}

/// A profile file: the keys that differ from the profile that its key `base` names, by default `strict`.
fn parse(text: &str) -> anyhow::Result<DeviceProfile> {
    let mut file: Value = toml::from_str(text)?;
    let base = match file.as_object_mut().and_then(|keys| keys.remove("base")) {
        None => BuiltInProfile::Strict,
        Some(Value::String(name)) => BuiltInProfile::named(&name)
            .with_context(|| format!("base must be one of {}, got {name:?}", names()))?,
        Some(other) => bail!("base must be one of {}, got {other}", names()),
    };
    let mut keys = serde_json::to_value(base.profile())?;
    overlay(&mut keys, file);
    let profile: DeviceProfile = serde_json::from_value(keys)?;
    profile.check()?;
    Ok(profile)
}

/// Replaces the values that `file` has. Keys that the base lacks are added, and refused when the whole is read.
fn overlay(base: &mut Value, file: Value) {
    match (base, file) {
        (Value::Object(base), Value::Object(file)) => {
            for (key, value) in file {
                overlay(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, value) => *base = value,
    }
}

/// A profile as a file that [`ProfileArgs::load`] reads.
pub fn to_toml(profile: &DeviceProfile) -> anyhow::Result<String> {
    let mut text = String::new();
    let Value::Object(sections) = serde_json::to_value(profile)? else {
        bail!("a profile consists of sections");
    };
    for (name, section) in sections {
        text += &format!("[{name}]\n");
        for (key, value) in section.as_object().into_iter().flatten() {
            // Numbers, booleans, strings and lists of strings read the same in JSON and TOML.
            text += &format!("{key} = {value}\n");
        }
        text.push('\n');
    }
    Ok(text)
}

fn names() -> String {
    BuiltInProfile::ALL.map(BuiltInProfile::name).join(", ")
}

/// The built-in profiles and the capabilities, for `--help`.
pub fn help() -> String {
    let mut text = String::from("Built-in profiles:\n");
    for built_in in BuiltInProfile::ALL {
        text += &format!("  {:<18} {}\n", built_in.name(), built_in.summary());
    }
    text += "\nCapabilities for --without:\n ";
    for capability in DeviceCapability::ALL {
        let line = text.rsplit('\n').next().unwrap_or_default();
        if line.len() + 2 + capability.name().len() > 100 {
            text += "\n ";
        }
        text += &format!(" {capability}");
    }
    text += "\n\nExamples:\n  heddle sim net.topo --profile connectx6-quantum\n";
    text += "  heddle sim net.topo --without outbound-enforcement\n";
    text += "  heddle sim --profile old-and-odd --print-profile > mine.toml; heddle sim net.topo --profile mine.toml\n";
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        format!("{:#}", parse(text).unwrap_err())
    }

    #[test]
    fn a_file_changes_only_the_keys_it_has() {
        let text = "base = \"connectx3-switchx\"\n[adapters]\nlanes = 4\nspeed_max = \"FDR10\"\n[links]\nrates = [\"4xQDR\"]\n";
        let mut expected = BuiltInProfile::ConnectX3SwitchX.profile();
        expected.adapters.lanes = ib_wire::DataLanes::Four;
        expected.adapters.speed_max = fabric_model::Speed::Fdr10;
        expected.links.rates = vec!["4xQDR".parse().unwrap()];
        assert_eq!(parse(text).unwrap(), expected);
        assert_eq!(parse("").unwrap(), DeviceProfile::default());
    }

    #[test]
    fn built_in_profiles_are_printed_as_files() {
        for built_in in BuiltInProfile::ALL {
            let text = to_toml(&built_in.profile()).unwrap();
            assert_eq!(parse(&text).unwrap(), built_in.profile(), "{text}");
        }
    }

    #[test]
    fn unknown_keys_and_names_are_refused() {
        assert!(
            error("[adapters]\nlane = 4").contains("unknown field `lane`"),
            "{}",
            error("[adapters]\nlane = 4")
        );
        assert!(error("[routers]\nlanes = 4").contains("unknown field `routers`"));
        assert!(error("base = \"loose\"").contains("strict, ibsim"));
        let missing = format!("{:#}", named_or_read("loose").unwrap_err());
        assert!(missing.contains("loose") && missing.contains("connectx6-quantum"), "{missing}");
    }

    #[test]
    fn values_out_of_range_are_refused() {
        for (text, named) in [
            ("[adapters]\nlanes = 5", "lanes must be 1, 2, 4, 8 or 15, got 5"),
            ("[switches]\nmtu = 3000", "mtu must be"),
            ("[switches]\narbitration_entries = 65", "0 to 64 entries, got 65"),
            ("[adapters]\npkeys = 0", "1 to 32768 entries, got 0"),
            ("[switches]\nspeed_max = \"ODR\"", "speed_max must be one of SDR"),
            ("[inherited]\nlmc = 8", "LMC must be 0 to 7, got 8"),
            ("[links]\nrates = [\"5xQDR\"]", "5xQDR"),
        ] {
            assert!(error(text).contains(named), "{text}: {}", error(text));
        }
    }
}
