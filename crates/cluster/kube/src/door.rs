//! The listener of endpoints that every pod with a network can reach: limits the number of connections, the time of a
//! handshake, and the time in which a stranger has to send a review. Nothing here needs a key, so it must withstand clients
//! that have none.

mod places;

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

pub(crate) use places::Guest;
use places::{ConnectionSlot, ConnectionSlots};

/// Connections at once.
const CONNECTIONS: usize = 512;
/// A handshake that takes longer than this is aborted.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// A connection on which no review has arrived ends after this.
const STRANGER: Duration = Duration::from_secs(20);
/// Any other one, when nothing is sent or received for this long. The API server keeps its own for 90 seconds.
const SILENCE: Duration = Duration::from_secs(120);

/// The client of a call.
#[derive(Clone, Debug)]
pub(crate) struct Peer(pub(crate) Arc<Guest>);

impl Connected<IncomingStream<'_, Door>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Door>) -> Self {
        Self(Arc::clone(&stream.io().place.guest))
    }
}

/// Accepts connections; see [`ConnectionSlots`]. With TLS a connection comes in when its handshake is done; meanwhile it takes its place.
pub(crate) struct Door {
    listener: TcpListener,
    places: ConnectionSlots,
    /// The certificate that new connections are shown; none: plain HTTP.
    tls: Option<watch::Receiver<Arc<ServerConfig>>>,
    handshakes: JoinSet<Option<(Connection, SocketAddr)>>,
}

impl Door {
    /// # Errors
    /// If the listener cannot be registered with this runtime.
    pub(crate) fn new(
        listener: StdListener,
        tls: Option<watch::Receiver<Arc<ServerConfig>>>,
    ) -> io::Result<Self> {
        let listener = TcpListener::from_std(listener)?;
        Ok(Self { listener, places: ConnectionSlots::new(CONNECTIONS), tls, handshakes: JoinSet::new() })
    }
}

impl Listener for Door {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            let (stream, address) = tokio::select! {
                Some(done) = self.handshakes.join_next() => {
                    if let Ok(Some(connected)) = done {
                        return connected;
                    }
                    continue;
                }
                // The inner one logs and waits when a connection cannot be accepted.
                accepted = Listener::accept(&mut self.listener) => accepted,
            };
            let place = self.places.take(address.ip());
            let Some(tls) = &self.tls else {
                return (Connection::new(Stream::Plain(stream), place), address);
            };
            let config = Arc::clone(&tls.borrow());
            self.handshakes.spawn(async move {
                let gone = std::future::poll_fn(|context| place.guest.poll_gone(context));
                let shaken = tokio::select! {
                    shaken = timeout(HANDSHAKE, TlsAcceptor::from(config).accept(stream)) => shaken.ok()?.ok()?,
                    () = gone => return None,
                };
                Some((Connection::new(Stream::Tls(Box::new(shaken)), place), address))
            });
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// The protocol of a connection.
enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    fn io(&mut self) -> Pin<&mut dyn Io> {
        match self {
            Self::Plain(stream) => Pin::new(stream),
            Self::Tls(stream) => Pin::new(stream.as_mut()),
        }
    }
}

/// Both directions of a connection.
trait Io: AsyncRead + AsyncWrite + Unpin {}
impl Io for TcpStream {}
impl Io for TlsStream<TcpStream> {}

/// A connection that ends when its time is over, or when another one needs its place.
pub(crate) struct Connection {
    stream: Stream,
    deadline: Pin<Box<Sleep>>,
    place: ConnectionSlot,
}

impl Connection {
    fn new(stream: Stream, place: ConnectionSlot) -> Self {
        Self { stream, deadline: Box::pin(tokio::time::sleep(STRANGER)), place }
    }

    /// A stranger's time does not begin again with each byte.
    fn heard(&mut self) {
        if self.place.guest.is_known() {
            self.deadline.as_mut().reset(Instant::now() + SILENCE);
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.place.guest.poll_gone(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        if self.deadline.as_mut().poll(context).is_ready() && !self.place.guest.is_known() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        if let Poll::Ready(read) = self.stream.io().poll_read(context, buffer) {
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
        let written = self.stream.io().poll_write(context, data);
        if written.is_ready() {
            self.heard();
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.io().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.io().poll_shutdown(context)
    }
}
