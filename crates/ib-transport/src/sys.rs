//! System calls that std does not offer. All unsafe code of the crate is here.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_ulong};
use std::fmt;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::path::Path;
use std::ptr;
use std::time::Duration;

/// Most messages per system call: twice the 32 requests that a client usually keeps in flight.
pub(crate) const BATCH_MAX: usize = 64;

/// Length of a data message of the ibsim protocol in bytes.
pub const DATA_LEN: usize = 288;

/// An encoded data message.
pub(crate) type RawDataMessage = [u8; DATA_LEN];

/// Whether a call blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// It does not block.
    Never,
    /// It blocks for one message, at most for the timeout of the socket, and takes those that are queued with it.
    ForOne,
}

/// Buffers for receiving up to [`BATCH_MAX`] data messages with one system call.
pub(crate) struct ReceiveBatch {
    buffers: Box<[RawDataMessage; BATCH_MAX]>,
    /// Not read, but `headers` point into it.
    _vectors: Box<[libc::iovec; BATCH_MAX]>,
    headers: Box<[libc::mmsghdr; BATCH_MAX]>,
}

// SAFETY: the raw pointers inside point into the boxes of the same value, which move with it and are reached through
// `&mut self` only.
unsafe impl Send for ReceiveBatch {}

impl ReceiveBatch {
    pub(crate) fn new() -> Self {
        let mut buffers = Box::new([[0; DATA_LEN]; BATCH_MAX]);
        let mut vectors: Box<[libc::iovec; BATCH_MAX]> = Box::new(std::array::from_fn(|index| libc::iovec {
            iov_base: buffers[index].as_mut_ptr().cast(),
            iov_len: DATA_LEN,
        }));
        let headers = Box::new(std::array::from_fn(|index| message_header(&mut vectors[index])));
        Self { buffers, _vectors: vectors, headers }
    }

    /// Receives up to [`BATCH_MAX`] messages and returns their number; an error only if there is not even one.
    pub(crate) fn receive(&mut self, socket: BorrowedFd<'_>, wait: Wait) -> io::Result<usize> {
        // With MSG_TRUNC the reported length is that of the message, which shows that an oversized one was truncated.
        let flags = libc::MSG_TRUNC
            | match wait {
                Wait::Never => libc::MSG_DONTWAIT,
                Wait::ForOne => libc::MSG_WAITFORONE,
            };
        // SAFETY: every header points to one iovec, and that to one buffer of DATA_LEN bytes; all three live in boxes
        // of `self`, which is borrowed exclusively for the call.
        let count = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                BATCH_MAX as u32,
                flags,
                ptr::null_mut(),
            )
        };
        check(count).map(|count| count as usize)
    }

    /// Message `index` of the last receive, truncated to [`DATA_LEN`], and its original length.
    pub(crate) fn message(&self, index: usize) -> (&[u8], usize) {
        let length = self.headers[index].msg_len as usize;
        (&self.buffers[index][..length.min(DATA_LEN)], length)
    }
}

/// Headers for sending up to [`BATCH_MAX`] data messages with one system call.
pub(crate) struct SendBatch {
    vectors: Box<[libc::iovec; BATCH_MAX]>,
    headers: Box<[libc::mmsghdr; BATCH_MAX]>,
}

// SAFETY: as for `ReceiveBatch`; the pointers to frames are set anew by each call that follows them.
unsafe impl Send for SendBatch {}

impl SendBatch {
    pub(crate) fn new() -> Self {
        let empty = libc::iovec { iov_base: ptr::null_mut(), iov_len: DATA_LEN };
        let mut vectors = Box::new([empty; BATCH_MAX]);
        let headers = Box::new(std::array::from_fn(|index| message_header(&mut vectors[index])));
        Self { vectors, headers }
    }

    /// Sends the first of `frames` and returns how many were sent; an error only if not even one was.
    pub(crate) fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        frames: &[RawDataMessage],
        wait: Wait,
    ) -> io::Result<usize> {
        let count = frames.len().min(BATCH_MAX);
        for (vector, frame) in self.vectors.iter_mut().zip(frames) {
            vector.iov_base = frame.as_ptr().cast_mut().cast();
        }
        let flags = libc::MSG_NOSIGNAL | if wait == Wait::Never { libc::MSG_DONTWAIT } else { 0 };
        // SAFETY: the first `count` headers point to iovecs that were just set to frames borrowed for the call; sending
        // only reads them, so the cast from a shared borrow is sound.
        let sent =
            unsafe { libc::sendmmsg(socket.as_raw_fd(), self.headers.as_mut_ptr(), count as u32, flags) };
        check(sent).map(|sent| sent as usize)
    }
}

/// A user id as the kernel reports it in the credentials of a message (`SCM_CREDENTIALS`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserId(pub u32);

impl UserId {
    pub const ROOT: Self = Self(0);

    /// The effective user id of this process.
    pub fn own() -> Self {
        // SAFETY: no pointers, and it cannot fail.
        Self(unsafe { libc::geteuid() })
    }
}

impl fmt::Display for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Makes the kernel attach the credentials of the sender to every message that the socket receives from now on.
pub(crate) fn pass_credentials(socket: &UnixDatagram) -> io::Result<()> {
    let on: c_int = 1;
    let length = mem::size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the kernel reads one integer that outlives the call.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PASSCRED,
            (&raw const on).cast(),
            length,
        )
    })
    .map(drop)
}

/// Length and sender of a received message.
#[derive(Debug)]
pub(crate) struct CredentialedMessage {
    pub(crate) length: usize,
    /// The abstract address of the sender's socket, if it has one.
    pub(crate) sender: Option<SocketAddr>,
    /// The user of the sender, if the kernel reported it.
    pub(crate) user: Option<UserId>,
}

/// Receives one message, without blocking, from a socket for which [`pass_credentials`] was called. A message longer than
/// `buffer` is truncated.
pub(crate) fn receive_with_credentials(
    socket: &UnixDatagram,
    buffer: &mut [u8],
) -> io::Result<CredentialedMessage> {
    /// Room for two control messages with one `ucred` each; the kernel attaches nothing else that is used.
    const CONTROL_LEN: usize = 64;
    #[repr(align(8))]
    struct Control([u8; CONTROL_LEN]);
    let mut control = Control([0; CONTROL_LEN]);
    let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: sockaddr_un is plain integers, for which zero is valid.
    let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
    let mut header = message_header(&mut vector).msg_hdr;
    header.msg_name = (&raw mut address).cast();
    header.msg_namelen = mem::size_of::<libc::sockaddr_un>() as libc::socklen_t;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = CONTROL_LEN;
    // A child process must not inherit file descriptors that a sender attaches.
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header points to one iovec, an address and a control buffer of the lengths it says, all of which outlive
    // the call.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut header, flags) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    let mut user = None;
    // SAFETY: recvmsg has just filled in the header and the control buffer; the macros walk inside it.
    let mut message = unsafe { libc::CMSG_FIRSTHDR(&header) };
    while !message.is_null() {
        // SAFETY: not null, so a control message that lies in the buffer.
        let (level, kind) = unsafe { ((*message).cmsg_level, (*message).cmsg_type) };
        if (level, kind) == (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) {
            // SAFETY: a message of this kind holds one ucred, which need not be aligned.
            let credentials: libc::ucred = unsafe { ptr::read_unaligned(libc::CMSG_DATA(message).cast()) };
            user = Some(UserId(credentials.uid));
        } else if (level, kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: a message of this kind holds descriptors that were just given to this process.
            unsafe { close_received(message) };
        }
        // SAFETY: as for the first.
        message = unsafe { libc::CMSG_NXTHDR(&header, message) };
    }
    Ok(CredentialedMessage { length, sender: abstract_name(&address, header.msg_namelen), user })
}

/// Closes the file descriptors in a control message, which would otherwise use up the limit of this process.
///
/// # Safety
///
/// `message` is a complete SCM_RIGHTS message that was just received.
unsafe fn close_received(message: *const libc::cmsghdr) {
    // SAFETY: the caller vouches for the message.
    let (length, first) = unsafe { ((*message).cmsg_len, libc::CMSG_DATA(message)) };
    // SAFETY: no pointers.
    let header = unsafe { libc::CMSG_LEN(0) } as usize;
    for index in 0..length.saturating_sub(header) / mem::size_of::<c_int>() {
        // SAFETY: inside the message; the descriptor belongs to no one else.
        unsafe { libc::close(ptr::read_unaligned(first.cast::<c_int>().add(index))) };
    }
}

/// The abstract name in the first `length` bytes of an address.
fn abstract_name(address: &libc::sockaddr_un, length: libc::socklen_t) -> Option<SocketAddr> {
    let count = (length as usize).checked_sub(mem::offset_of!(libc::sockaddr_un, sun_path))?;
    let bytes: Vec<u8> = address.sun_path.get(..count)?.iter().map(|byte| *byte as u8).collect();
    let (zero, name) = bytes.split_first()?;
    (*zero == 0).then(|| SocketAddr::from_abstract_name(name).ok())?
}

fn message_header(vector: &mut libc::iovec) -> libc::mmsghdr {
    // SAFETY: mmsghdr is plain integers and pointers, for which zero (no name, no control data) is valid.
    let mut header: libc::mmsghdr = unsafe { mem::zeroed() };
    header.msg_hdr.msg_iov = vector;
    header.msg_hdr.msg_iovlen = 1;
    header
}

/// An event of an epoll wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EpollEvent {
    pub(crate) token: u64,
    /// There is data, an error or an end of stream to read.
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

/// The events that epoll reports for a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    None,
    Read,
    Write,
    ReadWrite,
}

impl Interest {
    pub(crate) const fn new(read: bool, write: bool) -> Self {
        match (read, write) {
            (false, false) => Self::None,
            (true, false) => Self::Read,
            (false, true) => Self::Write,
            (true, true) => Self::ReadWrite,
        }
    }

    const fn events(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Read => libc::EPOLLIN as u32,
            Self::Write => libc::EPOLLOUT as u32,
            Self::ReadWrite => (libc::EPOLLIN | libc::EPOLLOUT) as u32,
        }
    }
}

/// A level-triggered epoll instance. Its own descriptor is readable while one of its sockets is.
pub(crate) struct Epoll {
    fd: OwnedFd,
    events: [libc::epoll_event; Self::EVENTS_MAX],
}

impl Epoll {
    /// Most events per wait; because of level triggering the next wait reports the others.
    const EVENTS_MAX: usize = 128;

    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers; the result is checked and, if valid, owned by no one else.
        let fd = unsafe { owned(libc::epoll_create1(libc::EPOLL_CLOEXEC))? };
        Ok(Self { fd, events: [libc::epoll_event { events: 0, u64: 0 }; Self::EVENTS_MAX] })
    }

    /// Adds a socket, with interest in reading, until it is closed.
    pub(crate) fn add(&self, socket: impl AsFd, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, socket.as_fd(), token, Interest::Read)
    }

    pub(crate) fn modify(&self, socket: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, socket.as_fd(), token, interest)
    }

    /// Waits for events and returns their number. `timeout` is rounded up to milliseconds; a signal ends the wait with 0.
    pub(crate) fn wait(&mut self, timeout: Duration) -> io::Result<usize> {
        let milliseconds = i32::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
        // SAFETY: the kernel writes at most EVENTS_MAX entries to an array of that many.
        let count = unsafe {
            libc::epoll_wait(
                self.fd.as_raw_fd(),
                self.events.as_mut_ptr(),
                Self::EVENTS_MAX as c_int,
                milliseconds,
            )
        };
        match check(count) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            other => other.map(|count| count as usize),
        }
    }

    /// Event `index` of the last wait, below the number that it returned.
    pub(crate) fn event(&self, index: usize) -> EpollEvent {
        let libc::epoll_event { events, u64: token } = self.events[index];
        let has = |flags: c_int| events & flags as u32 != 0;
        EpollEvent {
            token,
            readable: has(libc::EPOLLIN | libc::EPOLLERR | libc::EPOLLHUP),
            writable: has(libc::EPOLLOUT),
        }
    }

    fn control(
        &self,
        operation: c_int,
        socket: BorrowedFd<'_>,
        token: u64,
        interest: Interest,
    ) -> io::Result<()> {
        let mut event = libc::epoll_event { events: interest.events(), u64: token };
        // SAFETY: the kernel reads one event that outlives the call.
        check(unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), operation, socket.as_raw_fd(), &mut event) })
            .map(drop)
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl std::fmt::Debug for Epoll {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Epoll({})", self.fd.as_raw_fd())
    }
}

/// Creates a non-blocking eventfd.
pub(crate) fn event_counter() -> io::Result<OwnedFd> {
    // SAFETY: no pointers; the result is checked and, if valid, owned by no one else.
    unsafe { owned(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)) }
}

/// Raises the limit of open files of the process to `wanted`, or to its hard limit if that is lower.
pub(crate) fn raise_open_file_limit(wanted: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one rlimit to a valid place.
    let known = check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) }).is_ok();
    if known && limit.rlim_cur < wanted.min(limit.rlim_max) {
        limit.rlim_cur = wanted.min(limit.rlim_max);
        // SAFETY: the kernel reads one rlimit. A refusal leaves things as they were.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    }
}

/// Binds a listening socket with mode 0600 from the start, so that only its owner can connect.
pub(crate) fn listen_private(path: &Path) -> io::Result<UnixListener> {
    /// Most connections that wait to be accepted, more than clients that restart at the same time.
    const WAITING_MAX: c_int = 128;
    let flags = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers; the result is checked and, if valid, owned by no one else.
    let socket = unsafe { owned(libc::socket(libc::AF_UNIX, flags, 0))? };
    // SAFETY: no pointers. The mode set before bind is the mode of the file that bind creates.
    check(unsafe { libc::fchmod(socket.as_raw_fd(), 0o600) })?;
    let (address, length) = path_address(path)?;
    // SAFETY: `address` is a valid sockaddr_un of which `length` bytes count.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) })?;
    // SAFETY: no pointers.
    check(unsafe { libc::listen(socket.as_raw_fd(), WAITING_MAX) })?;
    Ok(UnixListener::from(socket))
}

fn path_address(path: &Path) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: sockaddr_un is plain integers, for which zero is valid.
    let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    if bytes.is_empty() || bytes.len() >= address.sun_path.len() || bytes.contains(&0) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    for (target, byte) in address.sun_path.iter_mut().zip(bytes) {
        *target = *byte as libc::c_char;
    }
    let length = mem::offset_of!(libc::sockaddr_un, sun_path) + bytes.len() + 1;
    Ok((address, length as libc::socklen_t))
}

/// A file descriptor that is used only through `open`, `read`, `write`, `ioctl`, `poll` and `close` of the C library.
///
/// libumad2sim replaces exactly these symbols and returns descriptors that the kernel does not know. Therefore neither std's
/// files (which use `open64`) nor `OwnedFd` (which may check the descriptor) can be used.
#[derive(Debug)]
pub(crate) struct RawDevice(c_int);

impl RawDevice {
    pub(crate) fn open(path: &CStr, flags: c_int) -> io::Result<Self> {
        // SAFETY: the path is a C string that outlives the call.
        check(unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) }).map(Self)
    }

    /// Whether the descriptor is one of the kernel and not of a preloaded library.
    pub(crate) fn is_known_to_kernel(&self) -> bool {
        // SAFETY: no pointers; asking about a number that is not open only fails.
        check(unsafe { libc::fcntl(self.0, libc::F_GETFD) }).is_ok()
    }

    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the callee writes at most `buffer.len()` bytes to the buffer.
        let count = unsafe { libc::read(self.0, buffer.as_mut_ptr().cast(), buffer.len()) };
        match count {
            -1 => Err(io::Error::last_os_error()),
            // libumad2sim returns the negated error number instead of setting it.
            count if count < 0 => Err(io::Error::from_raw_os_error(-count as i32)),
            count => Ok((count as usize).min(buffer.len())),
        }
    }

    pub(crate) fn write(&self, buffer: &[u8]) -> io::Result<usize> {
        // SAFETY: the callee reads `buffer.len()` bytes of the buffer.
        let count = unsafe { libc::write(self.0, buffer.as_ptr().cast(), buffer.len()) };
        if count < 0 { Err(io::Error::last_os_error()) } else { Ok(count as usize) }
    }

    /// An ioctl with `argument` as its argument. The request number must encode the length of `argument`.
    pub(crate) fn control(&self, request: c_ulong, argument: &mut [u8]) -> io::Result<()> {
        debug_assert_eq!((request >> 16) & 0x3fff, argument.len() as c_ulong, "request encodes the length");
        // SAFETY: the request number says how many bytes the callee reads and writes, and there are that many.
        check(unsafe { libc::ioctl(self.0, request, argument.as_mut_ptr()) }).map(drop)
    }

    /// The descriptor; `None` if the kernel does not know it.
    pub(crate) fn kernel_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: it is open, and stays so while it is borrowed.
        self.is_known_to_kernel().then(|| unsafe { BorrowedFd::borrow_raw(self.0) })
    }

    /// Waits for input; `false` after the timeout, a signal or a spurious wake-up.
    pub(crate) fn wait_readable(&self, timeout: Duration) -> io::Result<bool> {
        let milliseconds = milliseconds(timeout);
        let mut entry = libc::pollfd { fd: self.0, events: libc::POLLIN, revents: 0 };
        // SAFETY: errno is a thread's own integer. It is cleared because libumad2sim fails spuriously without setting it.
        unsafe { *libc::__errno_location() = 0 };
        // SAFETY: one valid entry, which outlives the call.
        match check(unsafe { libc::poll(&mut entry, 1, milliseconds) }) {
            Err(error) if matches!(error.raw_os_error(), Some(0 | libc::EINTR | libc::EAGAIN)) => Ok(false),
            other => other.map(|count| count > 0),
        }
    }
}

/// Waits until one of two descriptors is readable, the timeout is over, or a signal arrives.
pub(crate) fn wait_for_either(a: impl AsFd, b: impl AsFd, timeout: Duration) -> io::Result<EitherReady> {
    let entry = |fd: BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut entries = [entry(a.as_fd()), entry(b.as_fd())];
    // SAFETY: two valid entries, which outlive the call.
    match check(unsafe { libc::poll(entries.as_mut_ptr(), 2, milliseconds(timeout)) }) {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
        result => Ok(EitherReady { second: result.is_ok() && entries[1].revents != 0 }),
    }
}

/// What ended [`wait_for_either`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct EitherReady {
    /// Whether the second descriptor is ready.
    pub second: bool,
}

fn milliseconds(timeout: Duration) -> c_int {
    c_int::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX)
}

impl Drop for RawDevice {
    fn drop(&mut self) {
        // SAFETY: the number came from `open` and no one else closes it.
        unsafe { libc::close(self.0) };
    }
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Takes ownership of a fresh descriptor.
///
/// # Safety
///
/// `result` is the result of a call that creates a descriptor, which no one else owns.
unsafe fn owned(result: c_int) -> io::Result<OwnedFd> {
    // SAFETY: checked to be a descriptor; the caller says no one else owns it.
    check(result).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}
