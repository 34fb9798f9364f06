//! Updates of a view when its slice changes: links and devices appear and disappear as in a real network.

use std::sync::Arc;
use std::time::Duration;

use fabric_sim::Fabric;

use crate::default_sm::{DefaultSm, Master};
use crate::projection::Projection;
use crate::slice::Slice;
use crate::view::{AdapterId, View, ViewError, default_plan};

/// Disconnected devices that may accumulate before all devices are rebuilt, in addition to as many as are connected.
const LEFT_BEHIND_MAX: usize = 16;

impl View {
    /// Shows another slice, after the cluster has grown, shrunk or moved.
    ///
    /// What remains keeps its aliases and its state. Links go down and come up, and switches report it by traps to
    /// the subnet manager. If the default SM is master, it installs the new default; otherwise the tables are judged
    /// again.
    ///
    /// All devices restart, and the default is in force until a manager of the tenant takes over again, if a switch
    /// needs more ports than it has, forwarding tables have become too small, or too many disconnected devices have
    /// accumulated. The caller stores [`View::names`] afterwards. The view is unchanged on errors other than
    /// [`ViewError::Capacity`] and [`ViewError::Install`].
    pub fn set_slice(&mut self, now: Duration, slice: Slice) -> Result<(), ViewError> {
        self.now = self.now.max(now);
        let mut names = self.names.clone();
        names.learn(&slice)?;
        let projection = Projection::of(&slice, &names)?;
        let plan = default_plan(&projection, &slice)?;
        let fits = projection.capacities().linear_forwarding <= self.linear
            && self.fabric.device_ids().len() <= 2 * projection.topology.node_count() + LEFT_BEHIND_MAX;
        let sm_port = self.default_sm_port();
        let is_recabled = fits && self.fabric.recable(self.now, &projection.topology).is_ok();
        let managers: Vec<AdapterId> =
            self.adapters.iter().filter(|(_, port)| self.fabric.is_sm(**port)).map(|(id, _)| *id).collect();
        let is_moved = self.projection.first_switch != projection.first_switch;
        (self.slice, self.names, self.projection, self.plan) = (slice, names, projection, Arc::new(plan));
        if is_recabled {
            self.index_adapters();
            if let Some(port) = sm_port.filter(|_| is_moved) {
                self.fabric.set_is_sm(self.now, port, false);
            }
            self.attach_default_sm(self.now);
            match self.default_sm.master() {
                Master::Own => self.install(),
                Master::Tenant(..) => self.overlays.touch(self.now),
            }
        } else {
            self.rebuild(&managers)?;
        }
        self.is_published = false;
        self.update_managers();
        self.forward_outputs();
        Ok(())
    }

    /// Rebuilds all devices with the default plan.
    fn rebuild(&mut self, managers: &[AdapterId]) -> Result<(), ViewError> {
        let capacities = self.projection.capacities();
        self.linear = capacities.linear_forwarding;
        self.fabric = Fabric::new(self.projection.topology.clone(), capacities, 0)?;
        self.fabric.handle_timeout(self.now);
        self.fabric.install(&self.plan)?;
        self.default_sm = DefaultSm::new(self.projection.first_switch);
        self.overlays.withdraw();
        self.index_adapters();
        self.attach_default_sm(self.now);
        for adapter in managers {
            if let Some(port) = self.port(*adapter) {
                self.fabric.set_is_sm(self.now, port, true);
            }
        }
        Ok(())
    }
}
