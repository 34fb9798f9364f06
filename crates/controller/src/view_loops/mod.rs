//! Control loops of tenant views: what they show, what tenants change in them, and the tunnels of guests into them. The
//! views themselves are served by [`crate::views`].

pub mod overlays;
pub mod slices;
pub mod tunnel_sockets;
