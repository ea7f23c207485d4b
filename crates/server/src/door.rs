//! The server's door: how many connections there are, and for how long one may be silent. Nothing here needs keys, so it must
//! hold against those who have none.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

/// Connections at once, unless this process may open fewer files.
const CONNECTIONS: usize = 4096;
/// Descriptors that are left for database, files and logs.
const RESERVED: usize = 128;

/// Who calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

impl Connected<IncomingStream<'_, Door>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Door>) -> Self {
        Self(*stream.remote_addr())
    }
}

/// Accepts connections, as many as there is room for. Others wait in the kernel until one ends.
pub(crate) struct Door {
    listener: TcpListener,
    room: Arc<Semaphore>,
    silence: Duration,
}

impl Door {
    /// A connection on which nothing was sent or received for `silence` is closed.
    pub(crate) fn new(listener: TcpListener, silence: Duration) -> Self {
        let room =
            files_limit().map_or(CONNECTIONS, |files| files.saturating_sub(RESERVED).clamp(16, CONNECTIONS));
        Self { listener, room: Arc::new(Semaphore::new(room)), silence }
    }
}

/// How many files this process may have open.
fn files_limit() -> Option<usize> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

impl Listener for Door {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let permit = Arc::clone(&self.room).acquire_owned().await.ok();
        // The inner one logs and waits when a connection can't be accepted.
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let deadline = Box::pin(tokio::time::sleep(self.silence));
        (Connection { stream, deadline, silence: self.silence, _permit: permit }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends when it is silent for too long.
pub(crate) struct Connection {
    stream: TcpStream,
    deadline: Pin<Box<Sleep>>,
    silence: Duration,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Connection {
    fn heard(&mut self) {
        let next = Instant::now() + self.silence;
        self.deadline.as_mut().reset(next);
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(context, buffer) {
            self.heard();
            return Poll::Ready(read);
        }
        self.deadline.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, data);
        if written.is_ready() {
            self.heard();
        }
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, data);
        if written.is_ready() {
            self.heard();
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
