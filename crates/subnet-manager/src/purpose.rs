//! What the requests of a manager are for.

use fabric_model::intent::PortName;
use ib_wire::{DirectedRoute, Guid, PortNum, Status};

use crate::attribute_key::AttributeRef;
use crate::key_ring::KeyVersion;
use crate::keys::Location;

/// What a request is for.
#[derive(Clone, Debug)]
pub(crate) enum Purpose {
    /// Which node is at a location?
    Probe {
        from: Option<Location>,
        route: DirectedRoute,
        /// The node whose M_Key was presented, and in which version.
        presented: Option<(Guid, KeyVersion)>,
        /// Number of the attempt, see [`KeyRing::attempts`](crate::key_ring::KeyRing::attempts).
        attempt: usize,
    },
    /// Change the M_Key of a port.
    Rekey {
        port: PortName,
    },
    /// Does a port answer to the M_Key of a version?
    RekeyCheck {
        port: PortName,
        version: KeyVersion,
    },
    Read {
        target: AttributeRef,
    },
    /// Read an attribute and compare it with the known value.
    Audit {
        target: AttributeRef,
    },
    /// Has the state of a port of this switch changed?
    LightSweep {
        target: AttributeRef,
    },
    /// Check a switch for which there is a reason.
    Recheck {
        target: AttributeRef,
    },
    Write {
        target: AttributeRef,
    },
    /// Read back what was written.
    Verify {
        target: AttributeRef,
    },
    /// Read PortInfo after a Set of PortState Active was refused: is the port Active already?
    ActivationCheck {
        target: AttributeRef,
        refusal: Status,
    },
    /// Does the link of a port run at FDR10? Devices without the vendor attribute refuse, which is no fault.
    Fdr10 {
        target: AttributeRef,
    },
    /// Does a switch route adaptively? Switches without the vendor attribute refuse, which is no fault.
    AdaptiveRouting {
        node: Guid,
    },
    /// Ask the software at a port to register at subnet administration.
    Register {
        target: AttributeRef,
    },
    /// Query another subnet manager.
    ForeignManager {
        node: Guid,
        port: PortNum,
    },
}
