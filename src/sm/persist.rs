//! Storing what the manager remembers: in its own file, and at the standby managers.

use std::time::Instant;

use control_protocol::FabricEvent;
use subnet_manager::PersistentState;

use super::daemon::Daemon;

impl Daemon {
    /// Writes the state file; the manager sends the Sets that depend on it only afterwards.
    pub fn persist(&mut self) -> anyhow::Result<()> {
        if self.awaits_followers {
            return self.await_followers();
        }
        if let Some(memory) = self.manager.poll_persist() {
            let began = Instant::now();
            match self.store(memory) {
                Ok(()) => {
                    tracing::debug!(elapsed = ?began.elapsed(), "state written");
                    self.record_state_saved()?;
                    self.awaits_followers = true;
                    return self.await_followers();
                }
                Err(error) if self.once => return Err(error),
                Err(error) => {
                    self.record_state_unsaved(&error);
                    self.manager.handle_not_persisted(self.now());
                }
            }
        }
        Ok(())
    }

    /// Writes the state file, and sends the change to the standby managers.
    fn store(&mut self, memory: PersistentState) -> anyhow::Result<()> {
        let now = self.now();
        let standbys = self.redundancy.as_ref().map(|it| it.followers.set()).unwrap_or_default();
        let memory = PersistentState { standbys, ..memory };
        let change = self.state.write(memory.clone())?;
        self.memory = memory;
        if let (Some(redundancy), Some(change)) = (&mut self.redundancy, change) {
            redundancy.followers.send(now, &change);
        }
        Ok(())
    }

    /// Lets the manager continue once all standby managers of the set have stored its state. The set is stored before, if one
    /// of them had to be left out.
    fn await_followers(&mut self) -> anyhow::Result<()> {
        let now = self.now();
        if let Some(redundancy) = &mut self.redundancy {
            redundancy.followers.leave_out_silent(now);
            if !redundancy.followers.is_remembered() || !self.store_set()? {
                return Ok(());
            }
        }
        self.awaits_followers = false;
        self.manager.handle_persisted(self.now());
        Ok(())
    }

    /// Stores which standby managers are in the set, if that has changed. Returns whether it is stored.
    fn store_set(&mut self) -> anyhow::Result<bool> {
        let Some(redundancy) = &self.redundancy else { return Ok(true) };
        if redundancy.followers.set() == self.memory.standbys {
            return Ok(true);
        }
        match self.store(self.memory.clone()) {
            // The others store it, too.
            Ok(()) => self.record_state_saved().map(|()| false),
            Err(error) => {
                self.record_state_unsaved(&error);
                Ok(false)
            }
        }
    }

    /// With other managers: sends beats as the master, and receives what the master remembers as a candidate. Returns whether
    /// there is a master.
    pub fn replicate(&mut self) -> anyhow::Result<bool> {
        let (now, is_master) = (self.now(), self.manager.is_master());
        let Some(redundancy) = &mut self.redundancy else { return Ok(false) };
        if is_master {
            redundancy.following.discard();
            redundancy.followers.beat(now);
            if !self.awaits_followers {
                self.store_set()?;
            }
            return Ok(false);
        }
        redundancy.followers.hang_up(now);
        let (state, memory) = (&mut self.state, &mut self.memory);
        let has_master = redundancy.following.receive(now, |new| {
            state.write(new.clone())?;
            *memory = new.clone();
            Ok(())
        })?;
        Ok(has_master)
    }

    /// Records that the state cannot be written. The fabric stays as it is, and the write is retried.
    fn record_state_unsaved(&mut self, error: &anyhow::Error) {
        let why = format!("{error:#}");
        tracing::error!("cannot write the state, so the fabric is not changed: {why}");
        if self.stats.unsaved.is_none() {
            crate::print_warning(format_args!(
                "cannot write the state, so the fabric is not changed until it can be written: {why}"
            ));
            self.send_to_watchers(FabricEvent::StateUnsaved { error: why.clone() });
        }
        self.stats.state_write_failures += 1;
        self.stats.unsaved = Some(why);
        self.metrics_written = None;
    }

    /// Records that the state is written, and reports it if it could not be written before.
    fn record_state_saved(&mut self) -> anyhow::Result<()> {
        if self.stats.unsaved.take().is_some() {
            tracing::info!("the state can be written again");
            self.send_to_watchers(FabricEvent::StateSaved);
            self.metrics_written = None;
            self.print("the state can be written again")?;
        }
        Ok(())
    }
}
