//! Stock InfiniBand software, run against an emulated fabric through libumad2sim.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, bail, ensure};

/// Longest run of any stock program: opensm on 11,664 hosts on a busy machine.
const TIME_LIMIT_S: u32 = 600;

/// Timeout of opensm for an answer, in milliseconds: the default of 200 is too short for an emulator on a busy machine.
const ANSWER_LIMIT_MS: &str = "60000";

/// Paths of libumad2sim, which redirects umad to ibsim's sockets.
const PRELOADS: [&str; 2] =
    ["/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so", "/usr/lib/umad2sim/libumad2sim.so"];

/// Runs stock programs on an emulator, attached to one node, with a scratch directory.
#[derive(Debug)]
pub struct Stock {
    preload: &'static str,
    name: String,
    node: String,
    directory: PathBuf,
}

impl Stock {
    /// Name of the file in which opensm describes the fabric; ibdmchk reads it.
    pub const SUBNET_LIST: &str = "opensm-subnet.lst";

    /// Prepares programs that attach to `node` of the emulator `name` and write their files to `directory`.
    ///
    /// # Errors
    /// If libumad2sim is not installed.
    pub fn new(name: &str, node: &str, directory: &Path) -> anyhow::Result<Self> {
        let found = PRELOADS.into_iter().find(|path| Path::new(path).exists());
        let preload = found.context("libumad2sim is not installed (Debian package libumad2sim0)")?;
        std::fs::create_dir_all(directory)?;
        Ok(Self { preload, name: name.into(), node: node.into(), directory: directory.into() })
    }

    /// Runs a program and returns its standard output; an exit status other than 0 is an error.
    pub fn run(&self, program: &str, arguments: &[&str]) -> anyhow::Result<String> {
        let output = self.output(program, arguments)?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            let complaint = String::from_utf8_lossy(&output.stderr);
            bail!("{program} {}: {} {}", arguments.join(" "), output.status, complaint.trim());
        }
        Ok(text)
    }

    fn output(&self, program: &str, arguments: &[&str]) -> anyhow::Result<Output> {
        self.command("timeout")
            .arg(TIME_LIMIT_S.to_string())
            .arg(program)
            .args(arguments)
            .output()
            .with_context(|| format!("cannot run {program}"))
    }

    /// A command that attaches to the emulator, with the scratch directory as working directory.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(&self.directory)
            .env("LD_PRELOAD", self.preload)
            .env("IBSIM_SOCKNAME", &self.name)
            .env("SIM_HOST", &self.node)
            .env("OSM_TMP_DIR", &self.directory)
            .env("OSM_CACHE_DIR", &self.directory);
        command
    }

    /// Configures the fabric with `opensm -o`; an error unless its log says SUBNET UP.
    pub fn bring_up(&self) -> anyhow::Result<()> {
        let log = self.directory.join("opensm.log");
        self.run("opensm", &["-o", "-t", ANSWER_LIMIT_MS, "-f", &log.to_string_lossy()])?;
        let text = std::fs::read_to_string(&log).context("opensm left no log")?;
        ensure!(text.contains("SUBNET UP"), "opensm ended without SUBNET UP");
        Ok(())
    }

    /// Reads a file that a program wrote to the scratch directory.
    pub fn read_file(&self, name: &str) -> anyhow::Result<String> {
        let path = self.directory.join(name);
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    /// Writes a file to the scratch directory.
    pub fn write_file(&self, name: &str, text: &str) -> anyhow::Result<()> {
        std::fs::write(self.directory.join(name), text).with_context(|| format!("cannot write {name}"))
    }

    /// Checks the routes that dump_fts reads with ibdmchk, and returns the number of paths scanned.
    ///
    /// # Errors
    /// If ibdmchk reports an error or does not report that there is no credit loop. Needs [`Self::SUBNET_LIST`].
    pub fn check_routes(&self) -> anyhow::Result<u64> {
        let tables = forwarding_dump(&self.run("dump_fts", &[])?);
        std::fs::write(self.directory.join("routes.fdbs"), tables)?;
        std::fs::write(self.directory.join("empty.mcfdbs"), "")?;
        // Offline: without the preload. It crashes while it ends, after the last line: judge by what it printed.
        let output = Command::new("timeout")
            .args([&TIME_LIMIT_S.to_string(), "ibdmchk", "-s", Self::SUBNET_LIST, "-f", "routes.fdbs"])
            .args(["-m", "empty.mcfdbs"])
            .current_dir(&self.directory)
            .output()
            .context("cannot run ibdmchk")?;
        let text = String::from_utf8_lossy(&output.stdout);
        std::fs::write(self.directory.join("ibdmchk.out"), text.as_bytes())?;
        ensure!(text.contains("no credit loops found"), "ibdmchk does not say that there is no credit loop");
        ensure!(!text.contains("-E-"), "ibdmchk reports errors");
        let scanned = text.split("Scanned:").nth(1).and_then(|rest| rest.split(' ').next());
        scanned.and_then(|number| number.parse().ok()).context("ibdmchk scanned nothing")
    }
}

/// Converts the output of dump_fts to the format of opensm's dumps, which ibdmchk reads.
fn forwarding_dump(printed: &str) -> String {
    let mut text = String::new();
    for line in printed.lines() {
        if let Some((_, rest)) = line.split_once(" guid ") {
            let guid = rest.split(' ').next().unwrap_or_default();
            text +=
                &format!("osm_ucast_mgr_dump_ucast_routes: Switch {guid}\nLID    : Port : Hops : Optimal\n");
        } else if let Some((lid, rest)) = line.split_once(' ')
            && lid.starts_with("0x")
            && let Some((port, _)) = rest.split_once(' ')
        {
            text += &format!("0x{} : {port}  : 00   : yes\n", lid[2..].to_uppercase());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::forwarding_dump;

    #[test]
    fn the_dump_of_dump_fts_becomes_one_of_opensm() {
        let printed = "Unicast lids [0x0-0x2a] of switch DR path slid 0; dlid 0; 0,1 guid 0x0002c90300200010 (leaf):\n  \
                       Lid  Out   Destination\n       Port     Info \n\
                       0x002a 019 : (Channel Adapter portguid 0x0002c90300100001: 'host')\n";
        let expected = "osm_ucast_mgr_dump_ucast_routes: Switch 0x0002c90300200010\n\
                        LID    : Port : Hops : Optimal\n0x002A : 019  : 00   : yes\n";
        assert_eq!(forwarding_dump(printed), expected);
    }
}
