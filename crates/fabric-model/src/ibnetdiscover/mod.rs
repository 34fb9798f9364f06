//! The text format of `ibnetdiscover`, which `ibsim` reads, too.
//!
//! The file has one record per node, ended by an empty line. A record has one line per cabled port, with the port at the
//! other end of its cable:
//!
//! ```text
//! vendid=0x2c9
//! devid=0xc738
//! sysimgguid=0xf4521403001165a0
//! switchguid=0xf4521403001165a0(f4521403001165a0)
//! Switch  36 "S-f4521403001165a0"         # "MF0;ib5:SX6036/U1" enhanced port 0 lid 128 lmc 0
//! [1]     "H-24be05ffff980030"[1](24be05ffff980031)    # "stage114 mlx4_0" lid 105 4xQDR
//! ```
//!
//! The short form of `ibsim` omits the optional parts: `Switch 8 "sw0"` and `[1] "host0"`.
//!
//! * A missing node GUID continues from the previous one of the same kind: adapters start at 0x100000, switches at
//!   0x200000, as in `ibsim`; routers start at 0x300000 (`ibsim` starts them at 0, which is not a valid GUID).
//! * A missing port GUID is the node GUID on a switch, and the node GUID plus the port number on other nodes.
//! * The port number of the other end defaults to 1. `@[3] "up"` gives port 3 the alias `up`, and `"@up"` refers to it.
//! * `module = "m"` prefixes the following names with `m#`. `devid`, `width` and `speed` apply to all following nodes,
//!   `vendid` and `sysimgguid` to the next one.
//! * `w=` and `s=` on a port line are the masks of enabled widths and speeds, by default 4x and SDR. The rate at the end of
//!   a line takes precedence, as in `ibsim`. The mask of extended speeds, `e=`, is checked and ignored.
//! * Both ends of a link must be listed and agree. Other lines are ignored; `include` and `do` are rejected.

mod comment;
mod cursor;
mod error;
mod lines;
mod reader;
mod writer;

pub use error::{ParseError, ParseErrorKind};
pub use lines::LINE_BYTES_MAX;
pub use reader::{parse, read};
pub use writer::write;

#[cfg(test)]
mod tests;
