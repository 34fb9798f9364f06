//! Control sockets: a request is one line of JSON, a reply is one or more lines of JSON (`{"ok": …}` or `{"error": …}`).
//! Only the owner of the socket can connect.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use control_protocol::{ControlError, read_reply, write_reply};
use ib_transport::Waker;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Connections served at once.
const CONNECTIONS_MAX: usize = 64;

/// Timeout of a read or write on a connection.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval at which a connection is checked for a peer that has gone.
const LIVENESS_INTERVAL: Duration = Duration::from_secs(1);

/// Interval at which a process that is about to end checks whether its last reply was sent.
const FLUSH_INTERVAL: Duration = Duration::from_millis(2);

/// Replies queued for a slow reader before the connection is closed.
const ANSWERS_WAITING_MAX: usize = 4096;

/// A request on its way to the thread that executes it.
#[derive(Debug)]
pub struct PendingRequest<R> {
    pub request: R,
    pub answers: Replies,
}

/// Receives a connection that carries another protocol from now on.
type TakeStream = Box<dyn FnOnce(UnixStream) + Send>;

/// What the thread of a connection is to do.
enum Answer {
    Reply(Result<Value, ControlError>),
    /// Send the last reply, then give the connection away.
    HandOver(Value, TakeStream),
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Reply(reply) => f.debug_tuple("Reply").field(reply).finish(),
            Self::HandOver(reply, _) => f.debug_tuple("HandOver").field(reply).finish_non_exhaustive(),
        }
    }
}

/// Sends the replies to one request. Dropping it closes the connection.
#[derive(Debug)]
pub struct Replies {
    sender: SyncSender<Answer>,
    /// Alive as long as the connection is served.
    connection: Weak<()>,
}

impl Replies {
    /// Queues a reply. Returns `false` if the peer has gone or its queue is full.
    pub fn send(&self, answer: Result<Value, ControlError>) -> bool {
        self.queue(Answer::Reply(answer))
    }

    /// Sends a last reply, and gives the connection to `take`, on another thread: it carries another protocol after the reply. The peer
    /// must have sent nothing after its request. Returns `false` if the peer has gone.
    pub fn hand_over(self, answer: Value, take: impl FnOnce(UnixStream) + Send + 'static) -> bool {
        self.queue(Answer::HandOver(answer, Box::new(take)))
    }

    fn queue(&self, answer: Answer) -> bool {
        match self.sender.try_send(answer) {
            Ok(()) => true,
            // The peer may have gone; the request has been executed all the same.
            Err(TrySendError::Disconnected(_) | TrySendError::Full(_)) => false,
        }
    }

    /// Waits until the peer has all replies, or [`REQUEST_TIMEOUT`]: the process is about to end.
    pub fn flush(self) {
        let Self { sender, connection } = self;
        drop(sender);
        let began = Instant::now();
        while connection.strong_count() > 0 && began.elapsed() < REQUEST_TIMEOUT {
            std::thread::sleep(FLUSH_INTERVAL);
        }
    }
}

/// A control socket that is being served. The file is removed when this value is dropped.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // A file that stays behind is replaced by the next listener.
        let _ = fs::remove_file(&self.path);
    }
}

/// Listens at `path` for requests of up to `request_max` bytes, and wakes `waker` for each.
///
/// # Errors
/// If another process serves the socket, or the file is not a socket. A socket that no process serves is replaced.
pub fn listen<R>(
    path: &Path,
    request_max: u64,
    waker: Waker,
) -> anyhow::Result<(ControlSocket, Receiver<PendingRequest<R>>)>
where
    R: DeserializeOwned + Send + 'static,
{
    remove_dead(path)?;
    let listener =
        UnixListener::bind(path).with_context(|| format!("cannot listen at {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    let (sender, commands) = mpsc::channel();
    let connections = Arc::new(());
    std::thread::Builder::new().name("control".into()).spawn(move || {
        for stream in listener.incoming().flatten() {
            let (sender, waker) = (sender.clone(), waker.clone());
            if Arc::strong_count(&connections) > CONNECTIONS_MAX {
                refuse(stream);
                continue;
            }
            let connection = Arc::clone(&connections);
            let served = std::thread::Builder::new().name("control".into()).spawn(move || {
                let _connection = connection;
                if let Err(error) = serve(stream, request_max, &sender, &waker) {
                    tracing::info!("control connection: {error:#}");
                }
            });
            if let Err(error) = served {
                tracing::warn!("cannot serve a control connection: {error}");
            }
        }
    })?;
    Ok((ControlSocket { path: path.to_owned() }, commands))
}

fn refuse(mut stream: UnixStream) {
    let _ = stream.set_write_timeout(Some(Duration::from_millis(100)));
    // The peer may have gone already.
    let _ =
        send(&mut stream, Err(format!("too many connections: {CONNECTIONS_MAX} are open already").into()));
}

fn remove_dead(path: &Path) -> anyhow::Result<()> {
    let place = path.display();
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found.with_context(|| format!("cannot stat {place}"))?,
    };
    ensure!(found.file_type().is_socket(), "{place} exists and is not a socket");
    ensure!(UnixStream::connect(path).is_err(), "another process listens at {place}");
    fs::remove_file(path).with_context(|| format!("cannot replace {place}"))
}

fn serve<R: DeserializeOwned>(
    mut stream: UnixStream,
    request_max: u64,
    commands: &Sender<PendingRequest<R>>,
    waker: &Waker,
) -> anyhow::Result<()> {
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
    let mut line = String::new();
    BufReader::new(stream.try_clone()?.take(request_max)).read_line(&mut line)?;
    let request = match serde_json::from_str(&line) {
        Ok(request) => request,
        Err(error) => return send(&mut stream, Err(format!("invalid request: {error}").into())),
    };
    drop(line);
    let (sender, answers) = mpsc::sync_channel(ANSWERS_WAITING_MAX);
    let connection = Arc::new(());
    let answers_to = Replies { sender, connection: Arc::downgrade(&connection) };
    if commands.send(PendingRequest { request, answers: answers_to }).is_err() {
        return send(&mut stream, Err("the daemon is stopping".to_owned().into()));
    }
    waker.wake();
    loop {
        match answers.recv_timeout(LIVENESS_INTERVAL) {
            Ok(Answer::Reply(answer)) => send(&mut stream, answer)?,
            Ok(Answer::HandOver(answer, take)) => {
                send(&mut stream, Ok(answer))?;
                take(stream);
                return Ok(());
            }
            Err(RecvTimeoutError::Timeout) if is_gone(&mut stream) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// Whether the peer has closed the connection.
fn is_gone(stream: &mut UnixStream) -> bool {
    let quickly = stream.set_read_timeout(Some(Duration::from_millis(1)));
    quickly.is_err() || matches!(stream.read(&mut [0; 64]), Ok(0))
}

fn send(stream: &mut UnixStream, answer: Result<Value, ControlError>) -> anyhow::Result<()> {
    let reply = write_reply(answer)?;
    Ok(writeln!(stream, "{reply}")?)
}

/// Sends a request and returns its replies as they arrive.
pub fn request<T: DeserializeOwned>(
    path: &Path,
    request: &impl Serialize,
) -> anyhow::Result<impl Iterator<Item = anyhow::Result<T>>> {
    let place = path.display();
    let mut stream = UnixStream::connect(path).with_context(|| format!("no process listens at {place}"))?;
    writeln!(stream, "{}", serde_json::to_string(request)?)?;
    Ok(BufReader::new(stream).lines().map(|line| {
        let line = line.context("the connection was lost")?;
        Ok(read_reply(&line)??)
    }))
}

/// Sends a request and returns its first reply.
pub fn request_one<T: DeserializeOwned>(path: &Path, request: &impl Serialize) -> anyhow::Result<T> {
    self::request(path, request)?.next().context("the connection was closed without a reply")?
}

/// Creates a directory with mode 700, or checks that an existing one belongs to this user and has that mode.
pub fn create_private_directory(directory: &Path) -> anyhow::Result<()> {
    let place = directory.display();
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("cannot create {place}"));
        }
        _ => {}
    }
    let found = fs::symlink_metadata(directory).with_context(|| format!("cannot stat {place}"))?;
    let private = found.is_dir() && found.uid() == effective_user()? && found.mode() & 0o077 == 0;
    ensure!(private, "{place} must be a directory that only its owner can enter: remove it, or chmod 700");
    Ok(())
}

/// The effective user id of this process.
pub fn effective_user() -> anyhow::Result<u32> {
    Ok(fs::metadata("/proc/self").context("cannot read the user id of this process")?.uid())
}
