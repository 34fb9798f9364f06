//! Messages on the control sockets of `heddle sm` and `heddle sim`, as types that both ends use.
//!
//! A client connects to a unix stream socket and sends one request: one line of JSON ([`SmRequest`], [`SimRequest`]). The
//! server answers with one line, or, for [`SmRequest::Watch`], with one line per [`FabricEvent`] until either side
//! closes the connection. Every line is `{"ok": …}` or `{"error": "…"}`, the latter with a `code` where programs have to
//! distinguish reasons ([`read_reply`]).
//!
//! Both ends belong to the same version of Heddle. Unknown commands and fields are rejected.

mod reply;
pub mod sim;
pub mod sm;

pub use reply::{ControlError, MalformedReply, read_reply, write_reply};
pub use sim::SimRequest;
pub use sm::{FabricEvent, PlanRejection, ReleasedKeys, Replica, SmRequest};
