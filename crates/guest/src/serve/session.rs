//! One session: a process group, its pipes, and a flow-control window per direction.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::PollFlags;
use nix::sys::signal::{Signal, killpg};
use nix::sys::socket::{Shutdown, shutdown};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use thiserror::Error;

use super::status::Environment;
use super::would_block;
use crate::channel::{SessionId, SessionRequest, ToHost, Window, WindowOverrun};

/// Time between SIGTERM and SIGKILL: enough for mpirun to end its ranks on other nodes.
const TERMINATION_GRACE: Duration = Duration::from_secs(2);

/// How long pipes are read after the command has exited. Background processes may hold them open for ever.
const LINGER: Duration = Duration::from_millis(500);

/// A pipe of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pipe {
    Input,
    Output,
    Error,
}

/// An open session.
#[derive(Debug)]
pub(super) struct Session {
    id: SessionId,
    child: Child,
    /// Standard input, until either side closes it.
    input: Option<File>,
    /// Bytes not yet written to standard input; bounded by the window.
    pending: VecDeque<u8>,
    /// The host has sent end of input; the pipe is closed once `pending` is empty.
    input_ended: bool,
    incoming: Window,
    output: Option<File>,
    error: Option<File>,
    outgoing: Window,
    /// Exit status of the process and when it was noticed.
    ended: Option<(ExitStatus, Instant)>,
    /// Input and output are the same socket.
    is_socket: bool,
}

/// A session whose processes are being terminated.
#[derive(Debug)]
pub(super) struct TerminatingSession {
    /// Session to report the exit for; `None` if the host that opened it is gone.
    pub(super) session: Option<SessionId>,
    child: Child,
    killed_at: Instant,
}

/// Why the process of a session could not be started.
#[derive(Debug, Error)]
pub(super) enum SessionStartError {
    #[error("the command to run is empty")]
    EmptyCommand,
    #[error("cannot run {program:?}")]
    Exec {
        program: String,
        #[source]
        error: io::Error,
    },
    #[error("cannot start sshd")]
    Ssh {
        #[source]
        error: io::Error,
    },
}

impl Session {
    /// Starts the process in a process group of its own.
    pub(super) fn start(
        id: SessionId,
        request: SessionRequest,
        environment: &Environment,
    ) -> Result<Self, SessionStartError> {
        match request {
            SessionRequest::Exec { argv } => {
                let Some((program, arguments)) = argv.split_first() else {
                    return Err(SessionStartError::EmptyCommand);
                };
                let mut command = Command::new(program);
                command.args(arguments);
                let failed = |error| SessionStartError::Exec { program: program.clone(), error };
                Self::exec(id, command, environment).map_err(failed)
            }
            SessionRequest::Ssh => {
                Self::ssh(id, environment).map_err(|error| SessionStartError::Ssh { error })
            }
        }
    }

    fn exec(id: SessionId, mut command: Command, environment: &Environment) -> io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = with_environment(&mut command, environment).spawn()?;
        let input = child.stdin.take().map(OwnedFd::from);
        let output = child.stdout.take().map(OwnedFd::from);
        let error = child.stderr.take().map(OwnedFd::from);
        Self::new(id, child, [input, output, error])
    }

    fn ssh(id: SessionId, environment: &Environment) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new("/usr/sbin/sshd");
        command.args(["-i", "-o", "UsePAM=no"]);
        command.stdin(OwnedFd::from(theirs.try_clone()?)).stdout(OwnedFd::from(theirs)).stderr(Stdio::null());
        let child = with_environment(&mut command, environment).spawn()?;
        // Drops the command's copy of the peer socket, which would otherwise hide the end of the stream.
        drop(command);
        let input = OwnedFd::from(ours.try_clone()?);
        let mut session = Self::new(id, child, [Some(input), Some(ours.into()), None])?;
        session.is_socket = true;
        Ok(session)
    }

    fn new(id: SessionId, child: Child, pipes: [Option<OwnedFd>; 3]) -> io::Result<Self> {
        for pipe in pipes.iter().flatten() {
            fcntl(pipe.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        let [input, output, error] = pipes.map(|pipe| pipe.map(File::from));
        Ok(Self {
            id,
            child,
            input,
            pending: VecDeque::new(),
            input_ended: false,
            incoming: Window::new(),
            output,
            error,
            outgoing: Window::new(),
            ended: None,
            is_socket: false,
        })
    }

    /// The pipes to poll, with their events.
    pub(super) fn waits(&self, backpressure: bool) -> impl Iterator<Item = (Pipe, &File, PollFlags)> {
        let reads = self.outgoing.available() > 0 && !backpressure;
        let input = self.input.as_ref().filter(|_| !self.pending.is_empty());
        let output = self.output.as_ref().filter(|_| reads);
        let error = self.error.as_ref().filter(|_| reads);
        let input = input.map(|file| (Pipe::Input, file, PollFlags::POLLOUT));
        let output = output.map(|file| (Pipe::Output, file, PollFlags::POLLIN));
        let error = error.map(|file| (Pipe::Error, file, PollFlags::POLLIN));
        input.into_iter().chain(output).chain(error)
    }

    /// When lingering ends; `None` while the process runs or the host does not read.
    pub(super) fn deadline(&self) -> Option<Instant> {
        // Without credit nothing can be read; the next credit wakes the server.
        let (_, at) = self.ended.filter(|_| self.outgoing.available() > 0)?;
        Some(at + LINGER)
    }

    /// Transfers bytes of one pipe, at most one frame, so that sessions are interleaved.
    pub(super) fn transfer(&mut self, pipe: Pipe, buffer: &mut [u8]) -> Option<ToHost> {
        match pipe {
            Pipe::Input => self.write_input(),
            Pipe::Output | Pipe::Error => self.read(pipe, buffer),
        }
    }

    /// Accepts input from the host; empty means end of input. Returns credit to send.
    pub(super) fn input(&mut self, bytes: Vec<u8>) -> Result<Option<ToHost>, WindowOverrun> {
        self.incoming.debit(bytes.len())?;
        self.input_ended |= bytes.is_empty();
        self.pending.extend(bytes);
        self.close_input_when_done();
        // Without a pipe the input is discarded at once.
        Ok(if self.input.is_none() { self.write_input() } else { None })
    }

    /// The host has granted credit for output.
    pub(super) fn grant(&mut self, bytes: u32) -> Result<(), WindowOverrun> {
        self.outgoing.grant(bytes)
    }

    /// Checks whether the process has exited.
    pub(super) fn poll_exit(&mut self, now: Instant) {
        if self.ended.is_none()
            && let Ok(Some(status)) = self.child.try_wait()
        {
            self.ended = Some((status, now));
        }
    }

    /// Whether the process exited so long ago that only background processes hold its pipes open.
    pub(super) fn has_lingered(&self, now: Instant) -> bool {
        self.deadline().is_some_and(|deadline| now >= deadline)
    }

    /// The exit status, once the process has exited and all its output was read.
    pub(super) fn finished(&self) -> Option<i32> {
        let (status, _) = self.ended?;
        (self.output.is_none() && self.error.is_none()).then(|| exit_status(status))
    }

    /// Stops reading output.
    pub(super) fn close(&mut self) {
        (self.output, self.error) = (None, None);
    }

    /// Sends SIGTERM to the process group and closes the pipes.
    pub(super) fn end(self, session: Option<SessionId>, now: Instant) -> TerminatingSession {
        let Self { child, ended, .. } = self;
        if ended.is_none() {
            signal(&child, Signal::SIGTERM);
        }
        TerminatingSession { session, child, killed_at: now + TERMINATION_GRACE }
    }

    fn write_input(&mut self) -> Option<ToHost> {
        let written = match &mut self.input {
            Some(file) => match file.write(self.pending.as_slices().0) {
                Ok(written) => written,
                Err(error) if would_block(&error) => return None,
                // The process has closed its input: further input is discarded, but still credited.
                Err(_) => {
                    self.input = None;
                    self.pending.len()
                }
            },
            None => self.pending.len(),
        };
        self.pending.drain(..written);
        self.close_input_when_done();
        let credit = self.incoming.consume(written)?;
        Some(ToHost::Credit { session: self.id, bytes: credit })
    }

    fn close_input_when_done(&mut self) {
        if self.input_ended
            && self.pending.is_empty()
            && let Some(file) = self.input.take()
            && self.is_socket
        {
            // Fails only if the peer has already closed the socket.
            let _ = shutdown(std::os::fd::AsRawFd::as_raw_fd(&file), Shutdown::Write);
        }
    }

    fn read(&mut self, pipe: Pipe, buffer: &mut [u8]) -> Option<ToHost> {
        let room = self.outgoing.available().min(buffer.len());
        let file = if pipe == Pipe::Output { &mut self.output } else { &mut self.error };
        let length = match file.as_mut()?.read(&mut buffer[..room]) {
            Err(error) if would_block(&error) => return None,
            // An error of a pipe or socket counts as its end.
            Ok(0) | Err(_) => {
                *file = None;
                return None;
            }
            Ok(length) => length,
        };
        self.outgoing.debit(length).ok()?;
        let bytes = buffer[..length].to_vec();
        Some(match pipe {
            Pipe::Error => ToHost::Error { session: self.id, bytes },
            _ => ToHost::Output { session: self.id, bytes },
        })
    }
}

impl TerminatingSession {
    pub(super) fn deadline(&self) -> Instant {
        self.killed_at
    }

    /// The exit status, once the process has exited. Sends SIGKILL after the grace period.
    pub(super) fn finished(&mut self, now: Instant) -> Option<i32> {
        let has_ended = has_ended(&self.child);
        if has_ended || now >= self.killed_at {
            // The whole group, before its id can be reused: children may outlive the process.
            signal(&self.child, Signal::SIGKILL);
            // A process in uninterruptible sleep dies later; the signal is repeated until then.
            self.killed_at = now + TERMINATION_GRACE;
        }
        match self.child.try_wait() {
            Ok(status) => status.map(exit_status),
            // Another caller has reaped it.
            Err(_) => Some(128 + Signal::SIGKILL as i32),
        }
    }
}

fn with_environment<'a>(command: &'a mut Command, environment: &Environment) -> &'a mut Command {
    command
        .env_clear()
        .envs(environment.variables.iter().map(|(name, value)| (name, value)))
        .current_dir(&environment.directory)
        .process_group(0)
}

/// Whether a process has exited, without reaping it.
fn has_ended(child: &Child) -> bool {
    let Ok(id) = i32::try_from(child.id()) else { return false };
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    waitid(Id::Pid(Pid::from_raw(id)), flags).is_ok_and(|status| status != WaitStatus::StillAlive)
}

/// Signals the whole process group.
fn signal(child: &Child, signal: Signal) {
    if let Ok(id) = i32::try_from(child.id()) {
        // Fails only if the group no longer exists.
        let _ = killpg(Pid::from_raw(id), signal);
    }
}

fn exit_status(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}
