//! Supervision of the control loops.
//!
//! Every loop runs until the process ends. One that returns or panics would leave a controller that accepts requests and
//! acts on none of them, so [`ControlLoops::failure`] reports it and the process ends with an error.

use std::any::Any;
use std::collections::HashMap;
use std::future::Future;

use thiserror::Error;
use tokio::task::{Id, JoinSet};

/// A control loop that has ended, which none should.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum LoopFailure {
    #[error("the control loop {name} has ended")]
    Ended { name: &'static str },
    #[error("the control loop {name} has panicked: {message}")]
    Panicked { name: &'static str, message: String },
}

/// The running control loops. Dropping it aborts them.
#[derive(Debug, Default)]
pub struct ControlLoops {
    tasks: JoinSet<()>,
    names: HashMap<Id, &'static str>,
}

impl ControlLoops {
    /// Starts a loop. `name` appears in the error if it ends.
    pub fn spawn<T>(&mut self, name: &'static str, run: impl Future<Output = T> + Send + 'static) {
        let task = self.tasks.spawn(async move {
            run.await;
        });
        self.names.insert(task.id(), name);
    }

    /// Returns when the first loop ends. Pending for ever while all run, and if none was started.
    pub async fn failure(&mut self) -> LoopFailure {
        let Some(ended) = self.tasks.join_next_with_id().await else { return std::future::pending().await };
        let name_of = |id: Id| self.names.get(&id).copied().unwrap_or("unknown");
        match ended {
            Ok((id, ())) => LoopFailure::Ended { name: name_of(id) },
            Err(error) => {
                let name = name_of(error.id());
                match error.try_into_panic() {
                    Ok(panic) => LoopFailure::Panicked { name, message: message_of(&*panic) },
                    // Aborted, which only happens when this is stopped or dropped.
                    Err(_) => LoopFailure::Ended { name },
                }
            }
        }
    }

    /// Stops all loops, each where it waits, and returns when none runs.
    pub async fn stop(&mut self) {
        self.tasks.shutdown().await;
    }
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_loop_that_panics_is_reported_by_name() {
        let mut loops = ControlLoops::default();
        loops.spawn("idle", std::future::pending::<()>());
        loops.spawn("broken", async { panic!("{} is no number", "x") });
        let expected = LoopFailure::Panicked { name: "broken", message: "x is no number".to_owned() };
        assert_eq!(loops.failure().await, expected);
    }

    #[tokio::test]
    async fn a_loop_that_returns_is_reported_by_name() {
        let mut loops = ControlLoops::default();
        loops.spawn("idle", std::future::pending::<()>());
        loops.spawn("short", async {});
        assert_eq!(loops.failure().await, LoopFailure::Ended { name: "short" });
    }

    #[tokio::test]
    async fn loops_that_run_report_nothing() {
        let mut loops = ControlLoops::default();
        let patience = Duration::from_millis(20);
        assert!(tokio::time::timeout(patience, loops.failure()).await.is_err(), "none was started");
        loops.spawn("idle", std::future::pending::<()>());
        assert!(tokio::time::timeout(patience, loops.failure()).await.is_err());
    }

    #[tokio::test]
    async fn dropping_the_set_aborts_its_loops() {
        let (alive, ended) = tokio::sync::oneshot::channel::<()>();
        let mut loops = ControlLoops::default();
        loops.spawn("idle", async move {
            std::future::pending::<()>().await;
            drop(alive);
        });
        drop(loops);
        assert!(ended.await.is_err());
    }
}
