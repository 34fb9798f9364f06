//! Progress output: a line for each step reached, and on a terminal a spinner with the step in progress.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::output::{harmless, took};

/// Interval of redrawing the spinner.
const TICK: Duration = Duration::from_millis(120);

/// Shows the progress of a wait on standard error.
#[derive(Debug)]
pub struct WaitProgress {
    started: Instant,
    /// `None` if standard error is not a terminal.
    spinner: Option<ProgressBar>,
}

impl WaitProgress {
    /// Starts the clock; the spinner shows `what`.
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

    /// The time since the start.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Prints that a step was reached now.
    pub fn reached(&self, what: &str) {
        self.reached_after(self.elapsed(), what);
    }

    /// Prints that a step was reached `elapsed` after the start.
    pub fn reached_after(&self, elapsed: Duration, what: &str) {
        self.line(&format!("{:>8}  {}", took(elapsed), harmless(what)));
    }

    /// Shows the step in progress, on a terminal only.
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
