//! Tenant views: the networks of clusters as their tenants see and manage them.
//!
//! One thread serves the views of all clusters at a socket that only this user can open ([`ViewService::start`]). Tunnels
//! of tenants and guests connect to it, and the controller names the adapter of each stream ([`ViewService::attach`]).
//! Which views there are, and what they show, is decided by [`crate::view_loops`].

mod overlay_queue;
mod server;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::Context as _;
use ib_transport::framed::{Attach, Frame};
use ib_transport::{ClientRole, Server, Waker};
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use uuid::Uuid;

pub use overlay_queue::OverlayQueue;
pub use server::{ViewOwner, ViewServer};

/// A task for the thread that serves views.
type Task = Box<dyn FnOnce(&mut ViewServer, Duration) + Send>;

/// Handle of the thread that serves the views of all clusters. The thread ends when this is dropped.
#[derive(Debug)]
pub struct ViewService {
    tasks: mpsc::Sender<Task>,
    waker: Waker,
    socket: PathBuf,
    /// Changes that tenants made in their views.
    pub overlay_queue: Arc<OverlayQueue>,
    stop: Arc<AtomicBool>,
}

impl ViewService {
    /// Starts the thread, without views, at the unix socket `socket`.
    pub fn start(socket: &Path) -> anyhow::Result<Self> {
        let place = socket.display();
        let mut server =
            Server::framed_only(socket).with_context(|| format!("cannot serve views at {place}"))?;
        let (tasks, received) = mpsc::channel();
        let (waker, stop) = (server.waker(), Arc::new(AtomicBool::new(false)));
        let overlay_queue = Arc::new(OverlayQueue::default());
        let (stopped, queue) = (Arc::clone(&stop), Arc::clone(&overlay_queue));
        let serve = move || {
            let mut views = ViewServer::new(received, queue);
            if let Err(error) = server.run(&mut views, &stopped) {
                tracing::error!("views are no longer served: {error}");
            }
        };
        std::thread::Builder::new().name("views".to_owned()).spawn(serve).context("cannot serve views")?;
        Ok(Self { tasks, waker, socket: socket.to_owned(), overlay_queue, stop })
    }

    /// Runs a task on the thread; `None` if the thread has ended.
    pub async fn with<T: Send + 'static>(
        &self,
        task: impl FnOnce(&mut ViewServer, Duration) -> T + Send + 'static,
    ) -> Option<T> {
        let (answer, answered) = oneshot::channel();
        let task: Task = Box::new(move |server, now| drop(answer.send(task(server, now))));
        self.tasks.send(task).ok()?;
        self.waker.wake();
        answered.await.ok()
    }

    /// A stream to the adapter of a node. Nothing written to it can reach another adapter.
    pub async fn attach(&self, cluster: Uuid, node: u32) -> anyhow::Result<UnixStream> {
        let mut stream = UnixStream::connect(&self.socket).await.context("views are not served")?;
        let mut attach = Vec::new();
        let node_id = server::node_id(cluster, node);
        Frame::Attach(Attach { node_id, role: ClientRole::Ordinary }).encode(&mut attach);
        stream.write_all(&attach).await?;
        Ok(stream)
    }
}

impl Drop for ViewService {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
    }
}
