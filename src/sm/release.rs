//! Leaving the fabric to another subnet manager: what it needs is written to a directory, in the formats of OpenSM.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use control_protocol::ReleasedKeys;
use fabric_model::FabricPlan;
use fabric_model::intent::{Member, MemberSelector, PartitionIntent, PortName, Role};
use fabric_model::plan::GroupPlan;
use ib_wire::{Guid, Lid, LidAddress, PartitionNumber};
use subnet_manager::{HeldKey, RotationTarget};

use super::secret;
use crate::control_socket::{Replies, create_private_directory};
use crate::files::replace_private;

/// How long a manager that is at work may put off a release: longer than a sweep of the largest fabric.
const PATIENCE: Duration = Duration::from_secs(120);

/// Members on a line of partitions.conf: OpenSM reads lines of limited length.
const MEMBERS_PER_LINE: usize = 8;

/// Longest name of a partition that is exported.
const NAME_BYTES_MAX: usize = 32;

/// A release that was requested.
#[derive(Debug)]
pub struct Release {
    pub export: PathBuf,
    pub keys: ReleasedKeys,
    pub answers: Replies,
    pub step: ReleaseStep,
}

/// How far a release is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseStep {
    /// Nodes get other M_Keys.
    ChangingKeys,
    /// It waits until the manager has nothing more to write.
    Settling { since: Instant },
    /// The files are written; that the fabric is released is being persisted.
    Persisting,
}

impl Release {
    /// Whether the manager had its time to settle.
    pub fn is_overdue(&self) -> bool {
        matches!(self.step, ReleaseStep::Settling { since } if since.elapsed() > PATIENCE)
    }
}

/// What nodes change their M_Keys to; `None` if they keep them.
pub fn target(keys: &ReleasedKeys) -> anyhow::Result<Option<RotationTarget>> {
    Ok(match keys {
        ReleasedKeys::Kept => None,
        ReleasedKeys::Single(path) => Some(RotationTarget::Operator(secret::read_operator_key(path)?)),
        ReleasedKeys::Removed => Some(RotationTarget::Removed),
    })
}

/// Creates the directory, or checks it, so that a wrong one is an error before anything is changed.
pub fn prepare(directory: &Path) -> anyhow::Result<()> {
    ensure!(directory.is_absolute(), "{} must be an absolute path", directory.display());
    create_private_directory(directory)?;
    // So that the directory itself survives a power failure.
    let parent = directory.parent().unwrap_or(directory);
    File::open(parent)
        .and_then(|parent| parent.sync_all())
        .with_context(|| format!("cannot sync {}", parent.display()))
}

/// What another manager needs to know.
pub struct Export<'a> {
    pub plan: &'a FabricPlan,
    /// The partitions that the operator requested: they name members that are absent.
    pub intents: &'a [PartitionIntent],
    pub held: &'a [HeldKey],
    pub keys: &'a ReleasedKeys,
}

impl Export<'_> {
    /// Writes the files durably, each with mode 600, and returns a line for each. A symbolic link in the place of a file is
    /// replaced, not followed.
    pub fn write(&self, directory: &Path) -> anyhow::Result<Vec<String>> {
        prepare(directory)?;
        let lids = self.lids();
        let neighbors = self.neighbors();
        let files = [
            ("partitions.conf", self.partitions_conf(), self.plan.partitions().len(), "partitions"),
            ("guid2lid", guid2lid(&lids), lids.len(), "LIDs"),
            ("guid2mkey", guid2mkey(self.held), self.held.len(), "ports and their M_Keys"),
            ("neighbors", neighbor_lines(&neighbors), neighbors.len(), "ends of links"),
        ];
        let mut written = Vec::new();
        for (name, text, count, what) in files {
            let path = directory.join(name);
            replace_private(&path, text.as_bytes())?;
            written.push(format!("{}: {count} {what}", path.display()));
        }
        let path = directory.join("README");
        replace_private(&path, readme(self.keys, &directory.display().to_string()).as_bytes())?;
        written.push(format!("{}: what to do next", path.display()));
        Ok(written)
    }

    /// The LIDs of all end ports, those of absent ports included.
    fn lids(&self) -> BTreeMap<Guid, Lid> {
        let decided = self.plan.decisions().end_ports.iter().map(|(guid, port)| (*guid, port.lid));
        decided.chain(self.plan.lids().map(|(lid, guid)| (guid, lid))).collect()
    }

    /// Both ends of every link between end ports, each by the GUID of a port and the number of the port at its node.
    fn neighbors(&self) -> BTreeMap<(Guid, u8), (Guid, u8)> {
        let adapters = self.plan.adapter_ports().map(|port| (port.name, port.guid));
        let adapters: BTreeMap<PortName, Guid> = adapters.collect();
        let end = |name: PortName| {
            let switch = self.plan.switch(name.node).map(|switch| switch.port_guid);
            switch.or_else(|| adapters.get(&name).copied()).map(|guid| (guid, name.port.to_wire()))
        };
        let switches = self.plan.switches().flat_map(|switch| {
            let name = |port| PortName { node: switch.guid, port };
            switch.ports.iter().map(move |port| (name(port.number), port.peer))
        });
        let links = self.plan.adapter_ports().map(|port| (port.name, port.peer)).chain(switches);
        links.filter_map(|(here, there)| Some((end(here)?, end(there)?))).collect()
    }

    fn partitions_conf(&self) -> String {
        let mut text = String::from(
            "# Partitions at the time of the release, in the format of OpenSM. OpenSM needs allow_both_pkeys TRUE for members\n\
             # with \"both\".\n",
        );
        for partition in self.plan.partitions() {
            let mut members = self.absent_members(partition.number);
            members.extend(&partition.members);
            let groups = self.plan.groups().filter(|group| group.partition == partition.number);
            let groups: Vec<String> = groups.map(ipoib).collect();
            let rules = if groups.is_empty() { vec![String::new()] } else { groups };
            for flags in rules {
                let name = plain_name(&partition.name, partition.number);
                let _ = write!(text, "{name}={:#06x}{flags} :", partition.number.to_wire());
                for (position, (guid, role)) in members.iter().enumerate() {
                    let comma = if position == 0 { "" } else { "," };
                    let gap = if position % MEMBERS_PER_LINE == 0 { "\n    " } else { " " };
                    let _ = write!(text, "{comma}{gap}{guid}={}", role_name(*role));
                }
                text.push_str(" ;\n");
            }
        }
        text
    }

    /// The members of a partition that are named by port GUID and do not answer.
    fn absent_members(&self, number: PartitionNumber) -> BTreeMap<Guid, Role> {
        let numbered = |intent: &&PartitionIntent| {
            let decided = || self.plan.decisions().partitions.get(&intent.name).copied();
            intent.number.or_else(decided) == Some(number)
        };
        let known: BTreeSet<Guid> = self.plan.lids().map(|(_, guid)| guid).collect();
        let members = self.intents.iter().filter(numbered).flat_map(|intent| &intent.members);
        let absent = members.filter_map(|Member { selector, role, .. }| match selector {
            MemberSelector::Port(guid) if !known.contains(guid) => Some((*guid, *role)),
            _ => None,
        });
        absent.collect()
    }
}

/// The flags of a rule that make the broadcast group of a partition.
fn ipoib(group: &GroupPlan) -> String {
    format!(
        ", ipoib, rate={}, mtu={}, sl={}, scope={}, Q_Key={:#x}",
        group.rate.to_wire(),
        group.mtu.to_wire(),
        group.sl.to_wire(),
        group.scope.to_wire(),
        group.qkey.to_wire()
    )
}

/// A name that OpenSM reads as one: letters, digits and `_ - .`, and no digit in front.
fn plain_name(name: &str, number: PartitionNumber) -> String {
    if number == PartitionNumber::DEFAULT {
        return "Default".to_owned();
    }
    let plain = |c: char| if c.is_ascii_alphanumeric() || "_-.".contains(c) { c } else { '_' };
    let plain: String = name.chars().map(plain).take(NAME_BYTES_MAX).collect();
    if plain.starts_with(|c: char| c.is_ascii_alphabetic()) { plain } else { format!("p{plain}") }
}

/// Why a manager does not give its fabric over to one that asks for it.
pub fn refused_claim(from: LidAddress, order: u32) -> String {
    let from = match from {
        LidAddress::Unicast(lid) => format!("LID {lid}"),
        LidAddress::Multicast(_) | LidAddress::Permissive => "a port".to_owned(),
    };
    let order = match order {
        1 => "to hand the fabric over".to_owned(),
        4 => "to stand by".to_owned(),
        _ => format!("Set(SMInfo) {order}"),
    };
    format!(
        "{from} ordered this subnet manager {order}; refused: nodes hold M_Keys that another manager does not know, so run \
         `heddle sm release` first"
    )
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Limited => "limited",
        Role::Full => "full",
        Role::Both => "both",
    }
}

/// The cache file `guid2lid`: first and last LID of each end port, an empty line after each.
fn guid2lid(lids: &BTreeMap<Guid, Lid>) -> String {
    let line = |(guid, lid): (&Guid, &Lid)| {
        let (guid, lid) = (guid.to_wire(), lid.to_wire());
        format!("{guid:#018x} {lid:#06x} {lid:#06x}\n\n")
    };
    lids.iter().map(line).collect()
}

/// The cache file `guid2mkey`.
fn guid2mkey(held: &[HeldKey]) -> String {
    let line = |held: &HeldKey| {
        let key = held.m_key.map_or(0, |key| key.to_wire());
        format!("{:#018x} {key:#018x}\n\n", held.port.to_wire())
    };
    held.iter().map(line).collect()
}

/// The cache file `neighbors`: OpenSM uses it to find the node behind a port, and so its M_Key.
fn neighbor_lines(neighbors: &BTreeMap<(Guid, u8), (Guid, u8)>) -> String {
    let line = |((near, port), (far, far_port)): (&(Guid, u8), &(Guid, u8))| {
        format!("{:#018x}:{port} {:#018x}:{far_port}\n\n", near.to_wire(), far.to_wire())
    };
    neighbors.iter().map(line).collect()
}

fn readme(keys: &ReleasedKeys, directory: &str) -> String {
    let (m_key, reclaim) = match keys {
        ReleasedKeys::Kept => (
            "    m_key 0x...                       # a new random key; every node gets it in place of its own\n\
             \x20   m_key_lookup TRUE                 # guid2mkey and neighbors say which key each node has now\n\
             \x20   m_key_protection_level 2\n",
            "--operator-key FILE_WITH_THAT_M_KEY ",
        ),
        ReleasedKeys::Single(_) => (
            "    m_key 0x...                       # the key of --single-key: every node has it\n\
             \x20   m_key_lookup FALSE\n\
             \x20   m_key_protection_level 2\n",
            "--operator-key FILE ",
        ),
        ReleasedKeys::Removed => (
            "    m_key 0x0                         # nodes have no key: whoever reaches them can configure them\n",
            "",
        ),
    };
    format!(
        "The fabric was released by heddle sm. It keeps working without a manager, but nobody repairs it.\n\
         This directory holds M_Keys: keep it private, and remove it when the fabric is taken back.\n\n\
         To run OpenSM (3.3.23), put into its option file:\n\n\
         {m_key}\
         \x20   partition_config_file {directory}/partitions.conf\n\
         \x20   allow_both_pkeys TRUE\n\
         \x20   honor_guid2lid_file TRUE\n\n\
         and start it with this cache directory, without -r (--reassign_lids):\n\n\
         \x20   OSM_CACHE_DIR={directory} opensm -F OPTION_FILE\n\n\
         OpenSM knows one M_Key for the subnet and writes it to every node. It knows neither alias GUIDs nor\n\
         guarantees, and routes anew.\n\n\
         To take the fabric back, stop the other manager, and start heddle sm as before, with its state file, and with\n\n\
         \x20   --reclaim {reclaim}\n\n\
         Every node gets a key of its own again, of the next epoch: those in guid2mkey are worth nothing then.\n"
    )
}

#[cfg(test)]
mod tests {
    use fabric_compiler::{compile, partitions_conf};
    use fabric_model::generate::FatTree;
    use fabric_model::{Decisions, Intents, Topology};
    use ib_wire::MKey;

    use super::*;

    const CONF: &str = "blue=0x101, ipoib, mtu=5, sl=3 : ALL_CAS=limited, SELF=both;\nred room : 0x77=full;\nempty=0x102 : ;\n";

    fn tree() -> Topology {
        FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate().unwrap()
    }

    fn planned(partitions: &str) -> (FabricPlan, Vec<PartitionIntent>) {
        let tree = tree();
        let port = tree.end_nodes().next().unwrap().1.ports().next().unwrap().1.guid;
        let mut intents = Intents::new(port);
        intents.partitions = partitions_conf::parse(partitions).unwrap();
        let plan = compile(&tree, &intents, &Decisions::default()).unwrap();
        (plan, intents.partitions)
    }

    #[test]
    fn exported_partitions_give_the_same_plan() {
        let (plan, intents) = planned(CONF);
        let export = Export { plan: &plan, intents: &intents, held: &[], keys: &ReleasedKeys::Kept };
        let text = export.partitions_conf();
        let (again, _) = planned(&text);
        assert_eq!(again.groups().collect::<Vec<_>>(), plan.groups().collect::<Vec<_>>());
        let members = |plan: &FabricPlan| -> Vec<_> {
            plan.partitions().map(|partition| (partition.number, partition.members.clone())).collect()
        };
        assert_eq!(members(&again), members(&plan));
        assert!(text.contains("red_room=0x") && text.contains("0x0000000000000077=full"), "absent: {text}");
        assert!(text.contains("empty=0x0102 : ;"), "{text}");
    }

    #[test]
    fn neighbors_name_both_ends_of_every_link() {
        let (plan, intents) = planned(CONF);
        let export = Export { plan: &plan, intents: &intents, held: &[], keys: &ReleasedKeys::Kept };
        let neighbors = export.neighbors();
        assert_eq!(neighbors.len(), 2 * tree().links().count());
        assert!(neighbors.iter().all(|(near, far)| neighbors.get(far) == Some(near)));
    }

    #[test]
    fn files_are_their_owners_alone_and_replace_symbolic_links() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("export");
        let (plan, intents) = planned(CONF);
        let guid = Guid::from_wire(0x77).unwrap();
        let held = [HeldKey { port: guid, m_key: MKey::from_wire(0x1234_5678_9abc_def0) }];
        let export = Export { plan: &plan, intents: &intents, held: &held, keys: &ReleasedKeys::Kept };
        prepare(&directory).unwrap();
        let victim = scratch.path().join("victim");
        std::fs::write(&victim, "untouched").unwrap();
        symlink(&victim, directory.join("guid2mkey")).unwrap();
        symlink(&victim, directory.join("guid2lid.new")).unwrap();
        let told = export.write(&directory).unwrap();
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "untouched");
        let text = std::fs::read_to_string(directory.join("guid2mkey")).unwrap();
        assert_eq!(text, "0x0000000000000077 0x123456789abcdef0\n\n");
        assert!(!told.join("\n").contains("123456789abcdef0"), "no key is printed");
        let names: Vec<_> =
            std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(names.len(), 5, "{names:?}");
        for path in names {
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "{path:?}");
        }
        assert_eq!(std::fs::metadata(&directory).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn directories_that_others_can_enter_and_links_are_refused() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("export");
        prepare(&directory).unwrap();
        let link = scratch.path().join("link");
        symlink(&directory, &link).unwrap();
        assert!(prepare(&link).is_err());
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o750)).unwrap();
        assert!(prepare(&directory).is_err());
        assert!(prepare(Path::new("export")).is_err(), "a relative path is that of another process");
    }
}
