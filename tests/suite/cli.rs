//! The command line against a real controller; only the subnet manager and the agents of hosts are simulated.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

use crate::site::{self, Site};

/// A user of the command line.
struct User<'a> {
    site: &'a Site,
    token: PathBuf,
}

impl<'a> User<'a> {
    fn operator(site: &'a Site) -> Self {
        Self { site, token: site.directory.path().join("token") }
    }

    /// A tenant, made by commands.
    fn tenant(site: &'a Site, name: &str) -> Self {
        let operator = Self::operator(site);
        operator.ok(&["tenant", "create", name]);
        let token = site.directory.path().join(format!("{name}.token"));
        operator.ok(&["token", "create", "--tenant", name, "--save", token.to_str().unwrap()]);
        Self { site, token }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_heddle"))
            .args(arguments)
            .env_remove("HEDDLE_TOKEN")
            .env_remove("HEDDLE_TENANT")
            .env("HEDDLE_HOME", self.site.directory.path().join("nobody"))
            .env("HOME", self.site.directory.path())
            .env("HEDDLE_URL", self.site.controller_address().to_string())
            .env("HEDDLE_TOKEN_FILE", &self.token)
            .output()
            .unwrap()
    }

    /// Output of a command that succeeds.
    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The error of a command that fails: one line.
    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        let line = error.lines().last().unwrap_or_default();
        line.strip_prefix("heddle: ").unwrap_or_else(|| panic!("{error}")).to_owned()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[arguments, &["-o", "json"]].concat())).unwrap()
    }
}

#[test]
fn a_cluster_comes_grows_and_goes_by_commands() {
    let site = Site::new(16);
    let acme = User::tenant(&site, "acme");
    let created = acme.run(&["cluster", "create", "blue", "--nodes", "2", "--memory", "384M"]);
    let (out, progress) =
        (String::from_utf8(created.stdout).unwrap(), String::from_utf8(created.stderr).unwrap());
    // Simulated agents have no guests that could check the network.
    assert!(
        out.starts_with("cluster blue is ready (network unchecked) with 2 nodes, after "),
        "{out}{progress}"
    );
    for phase in ["placed", "network-programmed", "ready"] {
        assert!(progress.lines().any(|line| line.ends_with(&format!("s  blue {phase}"))), "{progress}");
    }
    let list = acme.ok(&["cluster", "list"]);
    assert!(
        list.lines().any(|line| line.starts_with("blue  acme    ready (network unchecked)  2/2")),
        "{list}"
    );

    acme.ok(&["cluster", "resize", "blue", "--nodes", "3", "--wait", "--timeout", "60s"]);
    assert_eq!(acme.json(&["cluster", "show", "blue"])["nodes"].as_array().unwrap().len(), 3);
    let yaml = acme.ok(&["cluster", "show", "blue", "-o", "yaml"]);
    assert!(yaml.lines().any(|line| line == "phase: ready"), "{yaml}");

    let operator = User::operator(&site);
    let fabric = operator.ok(&["fabric", "show"]);
    assert_eq!(fabric.lines().filter(|line| line.contains("acme/blue")).count(), 3, "{fabric}");
    operator.ok(&["fabric", "verify"]);
    let drawing = operator.ok(&["fabric", "show", "--format", "svg"]);
    assert!(drawing.trim_end().ends_with("</svg>"));

    let deleted = acme.ok(&["cluster", "delete", "blue"]);
    assert!(deleted.starts_with("cluster blue is deleted"), "{deleted}");
    assert_eq!(acme.json(&["cluster", "list"]), serde_json::json!([]));
    let events = acme.ok(&["event", "list"]);
    assert!(events.contains("acme") && events.contains("blue"), "{events}");
}

#[test]
fn what_cannot_be_is_told_in_one_line_with_what_would_work() {
    let site = Site::new(16);
    let acme = User::tenant(&site, "acme");
    let line = acme.refused(&["cluster", "create", "blue", "--image", "windows"]);
    assert!(line.contains("windows"), "{line}");
    let line = acme.refused(&["cluster", "show", "green"]);
    assert!(line.contains("green"), "{line}");
    let line = acme.refused(&["cluster", "create", "blue", "--nodes", "9999"]);
    assert!(line.contains("9999"), "{line}");
    let line = acme.refused(&["host", "list"]);
    assert!(!line.is_empty());
    let operator = User::operator(&site);
    let line = operator.refused(&["cluster", "show", "blue"]);
    assert!(line.contains("--tenant"), "{line}");
    let stranger = User { site: &site, token: site.directory.path().join("stranger") };
    std::fs::write(&stranger.token, "no-such-token").unwrap();
    std::fs::set_permissions(&stranger.token, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let line = stranger.refused(&["cluster", "list"]);
    assert!(line.contains("token") && !line.contains("no-such-token"), "{line}");
}

#[test]
fn a_cluster_that_fails_says_why_and_the_status_tells() {
    let site = Site::new(16);
    let acme = User::tenant(&site, "acme");
    site.world
        .lock()
        .unwrap()
        .change(|world| world.failure = Some("the image has a wrong checksum".to_owned()));
    let line = acme.refused(&["cluster", "create", "blue", "--nodes", "1"]);
    assert!(line.starts_with("cluster blue could not be created: "), "{line}");
    assert!(line.contains("operators find the reason") && !line.contains("wrong checksum"), "{line}");
    let events = User::operator(&site).ok(&["event", "list"]);
    assert!(events.contains("wrong checksum"), "{events}");
}

#[test]
fn no_wait_returns_and_the_operation_continues() {
    let site = Site::new(16);
    let acme = User::tenant(&site, "acme");
    let operation = acme.json(&["cluster", "create", "blue", "--no-wait"]);
    assert_eq!((&operation["kind"], &operation["cluster"]), (&"create".into(), &"blue".into()));
    site::eventually("it becomes ready", || acme.json(&["cluster", "show", "blue"])["phase"] == "ready");
}

#[test]
fn operators_see_hosts_images_tokens_and_tenants() {
    let site = Site::new(16);
    let operator = User::operator(&site);
    let acme = User::tenant(&site, "acme");
    let hosts = operator.ok(&["host", "list"]);
    assert_eq!(hosts.lines().filter(|line| line.contains("  up  ")).count(), 16, "{hosts}");
    assert!(operator.ok(&["image", "list"]).contains("debian-mpi"));
    assert!(operator.ok(&["tenant", "list"]).lines().any(|line| line.starts_with("acme  0")));
    let tokens = operator.json(&["token", "list"]);
    let tokens = tokens.as_array().unwrap();
    assert!(tokens.iter().all(|token| token.get("secret").is_none()));
    let id = tokens.iter().find(|token| token["tenant"] == "acme").unwrap()["id"].as_str().unwrap();
    acme.ok(&["cluster", "list"]);
    operator.ok(&["token", "revoke", id]);
    acme.refused(&["cluster", "list"]);
}

#[test]
fn renamed_commands_are_rejected_with_the_new_name() {
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_heddle")).args(arguments).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let bench = run(&["bench", "judge", "--pairs", "10"]);
    assert!(bench.contains("run `heddle-bench judge --pairs 10`"), "{bench}");
    let guided = run(&["sm", "--guided", "--device", "umad:0", "--control", "sm.sock"]);
    assert!(guided.contains("--guided is now --external-plans"), "{guided}");
}
