//! The text format of `ibnetdiscover`, which `ibsim` reads too.
//!
//! One record per node, ended by an empty line; within it one line per cabled port, naming the port at the other end:
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
//! The short form of `ibsim` is the same with less: `Switch 8 "sw0"` and `[1] "host0"`.
//!
//! * A GUID that no line gives is counted on from the last one of its kind: adapters from 0x100000, switches from
//!   0x200000, as in `ibsim`; routers, for which `ibsim` starts at the impossible 0, from 0x300000.
//! * A port GUID that no line gives is the node's on a switch, else the node's plus the port number.
//! * The other end's port number is 1 unless given. `@[3] "up"` names port 3 `up`; `"@up"` then means that port.
//! * `module = "m"` puts `m#` before the names that follow. `devid`, `vendid`, `width` and `speed` hold until said anew.
//! * `w=` and `s=` on a port line are the masks of enabled widths and speeds; 4x and SDR unless given. `ibsim` takes
//!   the rate at the end of a line, where there is one, for more than these; `e=`, the mask of extended speeds, is
//!   read over.
//! * Both ends of a link are listed and agree. Other lines are ignored; `include` and `do` are refused.

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
