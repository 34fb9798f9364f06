//! How waiting is shown: a line for everything that was reached, and on a terminal what is being waited for.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::output::{harmless, took};

/// How often a terminal shows that time passes.
const TICK: Duration = Duration::from_millis(120);

/// Shows that something goes on. What it shows goes to standard error: results do not mix with it.
#[derive(Debug)]
pub struct WaitProgress {
    started: Instant,
    /// Only on a terminal.
    spinner: Option<ProgressBar>,
}

impl WaitProgress {
    /// Begins to wait for `what`.
    pub fn new(what: &str) -> Self {
        let spinner = io::stderr().is_terminal().then(|| {
            let spinner = ProgressBar::new_spinner();
            // Without a style it still spins.
            if let Ok(style) = ProgressStyle::with_template("{elapsed:>6} {spinner} {wide_msg}") {
                spinner.set_style(style);
            }
            spinner.set_message(what.to_owned());
            spinner.enable_steady_tick(TICK);
            spinner
        });
        Self { started: Instant::now(), spinner }
    }

    /// How long it has been going on.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Tells that something was reached, now.
    pub fn reached(&self, what: &str) {
        self.reached_after(self.elapsed(), what);
    }

    /// Tells that something was reached, so long after the start.
    pub fn reached_after(&self, elapsed: Duration, what: &str) {
        self.line(&format!("{:>8}  {}", took(elapsed), harmless(what)));
    }

    /// Tells what is being waited for. Only a terminal shows it: it is of the moment.
    pub fn waits_for(&self, what: &str) {
        if let Some(spinner) = &self.spinner {
            spinner.set_message(harmless(what).replace('\n', " "));
        }
    }

    fn line(&self, line: &str) {
        match &self.spinner {
            Some(spinner) => spinner.println(line),
            None => eprintln!("{line}"),
        }
    }
}

impl Drop for WaitProgress {
    fn drop(&mut self) {
        if let Some(spinner) = &self.spinner {
            spinner.finish_and_clear();
        }
    }
}
