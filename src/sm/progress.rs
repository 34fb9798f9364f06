//! A progress line on a terminal.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use subnet_manager::MadProgress;

/// Shorter work shows no progress line.
const QUIET: Duration = Duration::from_millis(300);
const REDRAW: Duration = Duration::from_millis(100);

/// A line with the requests answered so far; nothing is printed if standard error is not a terminal.
#[derive(Debug)]
pub struct Bar {
    is_terminal: bool,
    started: Instant,
    drawn: Option<Instant>,
}

impl Bar {
    pub fn new() -> Self {
        Self { is_terminal: io::stderr().is_terminal(), started: Instant::now(), drawn: None }
    }

    /// Redraws the line, at most ten times a second.
    pub fn show(&mut self, progress: MadProgress) {
        if progress.done == progress.total {
            self.clear();
            self.started = Instant::now();
        }
        let is_due = self.drawn.is_none_or(|at| at.elapsed() > REDRAW);
        if self.is_terminal && self.started.elapsed() > QUIET && is_due {
            let MadProgress { done, total } = progress;
            // A terminal that is gone is no reason to stop.
            let _ = write!(io::stderr(), "\r\x1b[K{done} of {total} requests answered");
            self.drawn = Some(Instant::now());
        }
    }

    /// Removes the line before other output.
    pub fn clear(&mut self) {
        if self.drawn.take().is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
