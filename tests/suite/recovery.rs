//! A store that was lost or restored from an older copy, seen from the command line of an operator.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::rig::{HEDDLE, Printed, eventually};

/// Files of the store.
const STORE: [&str; 3] = ["controller.db", "controller.db-wal", "controller.db-shm"];

/// The directory of a site of which only the controller runs.
struct Home(TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn controller(&self) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", HEDDLE, "controller", "--state"]).arg(self.0.path());
        command.arg("--sm-control").arg(self.path("nobody")).stdout(Stdio::null());
        command
    }

    /// Starts the controller, and waits until it answers.
    fn start(&self) -> Controller {
        let controller = Controller(self.controller().stderr(Stdio::null()).spawn().unwrap());
        eventually("the controller answers", || self.run(&["tenant", "list"]).success);
        controller
    }

    /// A command of the operator.
    fn run(&self, arguments: &[&str]) -> Printed {
        self.run_with(&self.path("operator.token"), arguments)
    }

    fn run_with(&self, token: &Path, arguments: &[&str]) -> Printed {
        let mut command = Command::new(HEDDLE);
        command.args(arguments).env("HEDDLE_HOME", self.0.path()).env("HEDDLE_TOKEN_FILE", token);
        Printed::of(command.env_remove("HEDDLE_TOKEN").env_remove("HEDDLE_URL").output().unwrap())
    }

    fn ok(&self, arguments: &[&str]) -> String {
        let printed = self.run(arguments);
        assert!(printed.success, "{arguments:?}: {printed:?}");
        printed.stdout
    }

    fn recover(&self, accept: &str) -> Printed {
        let state = self.0.path().to_str().unwrap();
        self.run(&["controller", "recover", "--state", state, accept])
    }

    /// The error of a controller that does not start.
    fn refusal_to_start(&self) -> String {
        let printed = Printed::of(self.controller().stderr(Stdio::piped()).output().unwrap());
        assert!(!printed.success, "{printed:?}");
        printed.stderr
    }

    /// Copies the files of the store from one directory to another; files that the source lacks are removed from the
    /// target.
    fn copy_store(from: &Path, to: &Path) {
        for name in STORE {
            let _ = fs::remove_file(to.join(name));
            let _ = fs::copy(from.join(name), to.join(name));
        }
    }
}

/// A controller that runs. Killed when dropped.
struct Controller(Child);

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_older_store_is_rejected_until_its_losses_are_accepted() {
    let (home, copy) = (Home::new(), tempfile::tempdir().unwrap());
    let token = home.path("blue.token");
    let first = home.start();
    home.ok(&["tenant", "create", "blue"]);
    home.ok(&["token", "create", "--tenant", "blue", "--save", token.to_str().unwrap()]);
    let busy = home.recover("--accept-older-store");
    assert!(!busy.success && busy.stderr.contains("process"), "a controller is at work: {busy:?}");
    drop(first);
    Home::copy_store(home.0.path(), copy.path());

    let second = home.start();
    home.ok(&["tenant", "create", "red"]);
    assert!(home.run_with(&token, &["cluster", "list"]).success, "the control");
    drop(second);
    Home::copy_store(copy.path(), home.0.path());
    let said = home.refusal_to_start();
    assert!(said.contains("older copy") && said.contains("--accept-older-store"), "{said}");
    let wrong = home.recover("--accept-empty-store");
    assert!(!wrong.success && wrong.stderr.contains("is not empty"), "{wrong:?}");

    let recovered = home.recover("--accept-older-store");
    assert!(
        recovered.success && recovered.stdout.contains("epoch 2 begins; 2 tokens revoked"),
        "{recovered:?}"
    );
    let _third = home.start();
    let tenants = home.ok(&["tenant", "list"]);
    assert!(tenants.contains("blue") && !tenants.contains("red"), "{tenants}");
    let revoked = home.run_with(&token, &["cluster", "list"]);
    assert!(!revoked.success && revoked.stderr.contains("revoked"), "{revoked:?}");
}

#[test]
fn a_store_that_is_lost_is_missed_until_its_loss_is_accepted() {
    let (home, nothing) = (Home::new(), tempfile::tempdir().unwrap());
    let first = home.start();
    home.ok(&["tenant", "create", "blue"]);
    drop(first);
    Home::copy_store(nothing.path(), home.0.path());
    let said = home.refusal_to_start();
    assert!(said.contains("is missing") && said.contains("--accept-empty-store"), "{said}");
    assert!(!home.path("controller.db").exists(), "none is made");
    let wrong = home.recover("--accept-older-store");
    assert!(!wrong.success && wrong.stderr.contains("there is no store"), "{wrong:?}");

    let recovered = home.recover("--accept-empty-store");
    assert!(recovered.success && recovered.stdout.contains("epoch 2 begins"), "{recovered:?}");
    let _second = home.start();
    assert!(!home.ok(&["tenant", "list"]).contains("blue"));
}
