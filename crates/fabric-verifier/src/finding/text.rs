//! Parts of the sentences at the variants of [`Finding`](super::Finding): lists, optional values, input ports and roles.

use std::fmt;

use fabric_model::intent::Role;
use ib_wire::PortNum;

/// Prints items separated by commas.
pub(super) fn list<T: fmt::Display>(items: &[T]) -> impl fmt::Display {
    fmt::from_fn(move |f| {
        for (index, item) in items.iter().enumerate() {
            write!(f, "{}{item}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    })
}

/// Prints a value, or `none` in its place.
pub(super) fn or<T: fmt::Display>(value: &Option<T>, none: &'static str) -> impl fmt::Display {
    fmt::from_fn(move |f| match value {
        Some(value) => value.fmt(f),
        None => f.write_str(none),
    })
}

/// Prints the input port of an SL-to-VL map. A port's map for inputs without one of their own has none.
pub(super) fn map_input(input: &Option<PortNum>) -> impl fmt::Display {
    let input = *input;
    fmt::from_fn(move |f| match input {
        Some(port) => write!(f, "for packets from port {port}"),
        None => f.write_str("for packets from ports without a map of their own"),
    })
}

/// Prints the input port at which packets entered a switch. At the sender itself there is none.
pub(super) fn came_in(input: &Option<PortNum>) -> impl fmt::Display {
    let input = *input;
    fmt::from_fn(move |f| match input {
        Some(port) => write!(f, " (input port {port})"),
        None => Ok(()),
    })
}

/// Names a port's role in a partition.
pub(super) const fn role(role: &Option<Role>) -> &'static str {
    match role {
        Some(Role::Full) => "a full member",
        Some(Role::Limited) => "a limited member",
        Some(Role::Both) => "a member with both keys",
        None => "no member",
    }
}
