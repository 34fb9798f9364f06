//! A preload library that gives stock InfiniBand tools a umad device on an emulated fabric.
//!
//! With `LD_PRELOAD=libheddle_umad.so`, a program finds one adapter with one port in `/sys/class/infiniband` and opens
//! `/dev/infiniband/umad0` as on hardware. Behind it are a server of the ibsim or framed protocol and its fabric.
//!
//! | module | content |
//! |---|---|
//! | `interpose` | the replaced functions of the C library |
//! | `session` | the state of the process: link, device, and the thread that serves them |
//! | `port` | the device: agents, requests with timeouts, RMPP; no sockets, no clock |
//! | `abi` | the structures of the kernel's umad interface |
//! | `sysfs` | names and contents of the files in `/sys` and `/dev` |
//! | `link` | the connection to a server |
//! | `environment` | the variables that name the server |
//!
//! The crate has no public items: its interface is the one of the C library and the kernel. Its rlib exists only so that cargo
//! builds the shared library for tests; a program must not link it.

mod abi;
mod descriptors;
mod environment;
mod errno;
mod interpose;
mod link;
mod port;
mod real;
mod session;
mod sys;
mod sysfs;
