//! Control sockets: one line of JSON asks, lines of JSON answer. Only who owns the socket may use it.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError};
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use ib_transport::Waker;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Connections served at once.
const CONNECTIONS_MAX: usize = 64;

/// How long a connection may keep its thread waiting.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// How soon it is noticed that nobody waits for answers any more.
const LIVENESS_INTERVAL: Duration = Duration::from_secs(1);

/// Replies that may wait for a reader before it is cut off.
const ANSWERS_WAITING_MAX: usize = 4096;

/// A request on its way to the thread that can carry it out.
#[derive(Debug)]
pub struct PendingRequest<R> {
    /// What is asked.
    pub request: R,
    /// Where answers go.
    pub answers: Replies,
}

/// Where the answers to a request go: one, or many. Dropped, it ends the connection.
#[derive(Debug)]
pub struct Replies(SyncSender<Result<Value, ControlError>>);

/// Why a request was not carried out.
#[derive(Clone, Debug)]
pub struct ControlError {
    /// For people.
    pub text: String,
    /// For programs, where they may have to tell it from others.
    pub code: Option<&'static str>,
}

impl From<String> for ControlError {
    fn from(text: String) -> Self {
        Self { text, code: None }
    }
}

impl Replies {
    /// Sends an answer; whether anybody still reads them fast enough.
    pub fn send(&self, answer: Result<Value, ControlError>) -> bool {
        match self.0.try_send(answer) {
            Ok(()) => true,
            // Whoever asked may have gone; what was done stays done.
            Err(TrySendError::Disconnected(_) | TrySendError::Full(_)) => false,
        }
    }
}

/// A control socket while it is served; removed when dropped.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // A file that stays behind is replaced by the next one of the same name.
        let _ = fs::remove_file(&self.path);
    }
}

/// Opens a control socket that takes requests of up to `request_max` bytes; `waker` is used whenever one waits. A socket
/// that nobody serves any more is replaced; anything else that is there stays.
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
    // Whoever is refused may have gone already.
    let _ = say(&mut stream, Err(format!("{CONNECTIONS_MAX} others are served already").into()));
}

fn remove_dead(path: &Path) -> anyhow::Result<()> {
    let place = path.display();
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found.with_context(|| format!("cannot look at {place}"))?,
    };
    ensure!(found.file_type().is_socket(), "{place} exists and is not a socket");
    ensure!(UnixStream::connect(path).is_err(), "somebody else serves {place}");
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
        Err(error) => return say(&mut stream, Err(format!("not a request: {error}").into())),
    };
    drop(line);
    let (sender, answers) = mpsc::sync_channel(ANSWERS_WAITING_MAX);
    if commands.send(PendingRequest { request, answers: Replies(sender) }).is_err() {
        return say(&mut stream, Err("it is stopping".to_owned().into()));
    }
    waker.wake();
    loop {
        match answers.recv_timeout(LIVENESS_INTERVAL) {
            Ok(answer) => say(&mut stream, answer)?,
            Err(RecvTimeoutError::Timeout) if is_gone(&mut stream) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// Whether nobody waits for answers any more.
fn is_gone(stream: &mut UnixStream) -> bool {
    let quickly = stream.set_read_timeout(Some(Duration::from_millis(1)));
    quickly.is_err() || matches!(stream.read(&mut [0; 64]), Ok(0))
}

fn say(stream: &mut UnixStream, answer: Result<Value, ControlError>) -> anyhow::Result<()> {
    let reply = match answer {
        Ok(value) => json!({ "ok": value }),
        Err(ControlError { text, code: None }) => json!({ "error": text }),
        Err(ControlError { text, code: Some(code) }) => json!({ "error": text, "code": code }),
    };
    Ok(writeln!(stream, "{reply}")?)
}

/// The answers to a request, as they come.
pub fn request(
    path: &Path,
    request: &impl Serialize,
) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Value>>> {
    let place = path.display();
    let mut stream = UnixStream::connect(path).with_context(|| format!("nobody answers at {place}"))?;
    writeln!(stream, "{}", serde_json::to_string(request)?)?;
    Ok(BufReader::new(stream).lines().map(|line| {
        let line = line.context("the connection broke")?;
        let mut reply: Value = serde_json::from_str(&line).context("the answer is nonsense")?;
        match reply.get("error") {
            Some(text) => Err(anyhow!("{}", text.as_str().unwrap_or("it says nothing of why"))),
            None => Ok(reply.get_mut("ok").context("the answer is nonsense")?.take()),
        }
    }))
}

/// The one answer to a request.
pub fn request_one(path: &Path, request: &impl Serialize) -> anyhow::Result<Value> {
    self::request(path, request)?.next().context("the connection was closed without an answer")?
}

/// Makes sure that a directory is there and that nobody but this user can enter it, or put something else in its place.
pub fn create_private_directory(directory: &Path) -> anyhow::Result<()> {
    let place = directory.display();
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("cannot make {place}"));
        }
        _ => {}
    }
    let found = fs::symlink_metadata(directory).with_context(|| format!("cannot look at {place}"))?;
    let private = found.is_dir() && found.uid() == effective_user()? && found.mode() & 0o077 == 0;
    ensure!(private, "{place} is not a directory that only its owner can enter: remove it, or chmod 700");
    Ok(())
}

/// The user this process runs as.
pub fn effective_user() -> anyhow::Result<u32> {
    Ok(fs::metadata("/proc/self").context("cannot tell who runs this")?.uid())
}
