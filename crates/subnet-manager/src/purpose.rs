//! What the requests of a manager are for.

use ib_wire::{DirectedRoute, Guid, PortNum, Status};

use crate::attribute_key::AttributeRef;
use crate::keys::Location;

/// What a request is for.
#[derive(Clone, Debug)]
pub(crate) enum Purpose {
    /// Which node is at a location? Presents the M_Key of the expected node, if there is one.
    Probe {
        from: Option<Location>,
        route: DirectedRoute,
        expected: Option<Guid>,
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
