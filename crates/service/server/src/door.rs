//! The server's listener: limits the number of connections, the time for which one may be silent, and the time that a
//! stranger takes to say what it wants. Nothing here needs keys, so it must withstand callers that have none.

mod places;

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use cantle_clearml::{Envelope, Meta};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use places::{ConnectionSlot, ConnectionSlots};
pub(crate) use places::{Standing, network_of};

/// Connections at once, unless this process may open fewer files.
const CONNECTIONS: usize = 4096;
/// Descriptors that are left for database, files and logs.
const RESERVED: usize = 128;

/// A handshake that takes longer than this, or than a connection may be silent, is aborted.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// From the first byte of a connection to the end of its request's head. A client that sends one byte now and then would keep its
/// place forever.
const HEAD: Duration = Duration::from_secs(10);
/// The end of a head.
const END: &[u8] = b"\r\n\r\n";

/// A closing connection still receives until the client pauses for this long, and at most [`LINGER`] in all. A socket that is
/// closed with unread data resets the connection, and a client that was still sending then loses the answer.
const LINGER_PAUSE: Duration = Duration::from_millis(250);
const LINGER: Duration = Duration::from_secs(2);
/// The first byte of a TLS connection: a record of a handshake.
const TLS_HANDSHAKE_RECORD: u8 = 0x16;

/// The caller.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// Of its connection.
    pub(crate) standing: Arc<Standing>,
    /// It showed a certificate of an authority of `--tls-client-ca`.
    pub(crate) is_certified: bool,
}

impl Connected<IncomingStream<'_, Door>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Door>) -> Self {
        let standing = Arc::clone(stream.io().place.standing());
        Self { address: *stream.remote_addr(), standing, is_certified: stream.io().stream.is_certified() }
    }
}

/// Accepts connections, as many as there is room for ([`ConnectionSlots`]). With TLS a connection comes in when its handshake is done;
/// meanwhile it takes its place.
pub(crate) struct Door {
    listener: TcpListener,
    places: ConnectionSlots,
    silence: Duration,
    /// The certificate that new connections are shown; none: plain HTTP.
    tls: Option<watch::Receiver<Arc<ServerConfig>>>,
    handshakes: JoinSet<Option<(Connection, SocketAddr)>>,
}

impl Door {
    /// A connection on which nothing was sent or received for `silence` is closed.
    pub(crate) fn new(
        listener: TcpListener,
        silence: Duration,
        tls: Option<watch::Receiver<Arc<ServerConfig>>>,
    ) -> Self {
        let room =
            files_limit().map_or(CONNECTIONS, |files| files.saturating_sub(RESERVED).clamp(16, CONNECTIONS));
        Self { listener, places: ConnectionSlots::new(room), silence, tls, handshakes: JoinSet::new() }
    }
}

/// The next connection, once there is room for it.
async fn next(
    places: &ConnectionSlots,
    listener: &mut TcpListener,
) -> (Option<OwnedSemaphorePermit>, TcpStream, SocketAddr) {
    let permit = places.room().await;
    // The inner one logs and waits when a connection cannot be accepted.
    let (stream, address) = Listener::accept(listener).await;
    (permit, stream, address)
}

/// The handshake of one connection; `None` if the other side speaks no TLS.
async fn shake_hands(mut stream: TcpStream, config: Arc<ServerConfig>) -> Option<TlsStream<TcpStream>> {
    let mut first = [0];
    stream.peek(&mut first).await.ok().filter(|read| *read == 1)?;
    if first[0] != TLS_HANDSHAKE_RECORD {
        // It does not help a client of another protocol; a user who wrote http:// reads it.
        let _ = stream.write_all(speaks_tls().as_bytes()).await;
        return None;
    }
    TlsAcceptor::from(config).accept(stream).await.ok()
}

/// The answer to plain HTTP, in the form that ClearML's clients read.
fn speaks_tls() -> String {
    let meta = Meta {
        result_code: 400,
        result_msg: "this address speaks TLS: write https:// instead of http://".to_owned(),
        ..Meta::default()
    };
    let body = serde_json::to_string(&Envelope { meta, data: serde_json::json!({}) }).unwrap_or_default();
    format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
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
        loop {
            let (permit, stream, address) = tokio::select! {
                Some(done) = self.handshakes.join_next() => {
                    if let Ok(Some(connected)) = done {
                        return connected;
                    }
                    continue;
                }
                next = next(&self.places, &mut self.listener) => next,
            };
            let place = self.places.take(permit, address.ip());
            let Some(tls) = &self.tls else {
                return (Connection::new(Stream::Plain(stream), self.silence, place), address);
            };
            let (config, silence) = (Arc::clone(&tls.borrow()), self.silence);
            self.handshakes.spawn(async move {
                let gone = poll_fn(|context| place.standing().poll_gone(context));
                let shaken = tokio::select! {
                    shaken = timeout(HANDSHAKE.min(silence), shake_hands(stream, config)) => shaken.ok()??,
                    () = gone => return None,
                };
                let stream = Stream::Tls(Box::new(shaken));
                Some((Connection::new(stream, silence, place), address))
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
    /// The verifier took the certificate, if there is one.
    fn is_certified(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(stream) => stream.get_ref().1.peer_certificates().is_some(),
        }
    }

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

/// A connection that ends when it is silent for too long.
pub(crate) struct Connection {
    stream: Stream,
    deadline: Pin<Box<Sleep>>,
    silence: Duration,
    /// When it stops to receive; none: the server has not closed its side.
    lingers_until: Option<Instant>,
    head: Head,
    place: ConnectionSlot,
}

/// The head of a stranger's request, as it arrives.
enum Head {
    /// How much of its end was seen last, and when it has to be complete.
    Open(usize, Option<Instant>),
    Complete,
}

impl Head {
    /// Takes note of what arrived.
    fn read(&mut self, bytes: &[u8]) {
        let Self::Open(seen, until) = self else { return };
        until.get_or_insert_with(|| Instant::now() + HEAD);
        for byte in bytes {
            *seen = if *byte == END[*seen] { *seen + 1 } else { usize::from(*byte == END[0]) };
            if *seen == END.len() {
                *self = Self::Complete;
                return;
            }
        }
    }

    /// When it has to be complete.
    const fn until(&self) -> Option<Instant> {
        if let Self::Open(_, until) = self { *until } else { None }
    }
}

impl Connection {
    fn new(stream: Stream, silence: Duration, place: ConnectionSlot) -> Self {
        let deadline = Box::pin(tokio::time::sleep(silence));
        Self { stream, deadline, silence, lingers_until: None, head: Head::Open(0, None), place }
    }

    fn heard(&mut self) {
        let next = Instant::now() + self.silence;
        self.deadline.as_mut().reset(self.head.until().map_or(next, |until| until.min(next)));
    }

    fn answered(&mut self) {
        // The next bytes from a stranger after an answer are the next head. A body may take long, but only with a key.
        if !self.place.standing().is_known() {
            self.head = Head::Open(0, None);
        }
        self.heard();
    }

    /// Discards what arrives until the client has closed its side, pauses or the time is over.
    fn poll_linger(&mut self, until: Instant, context: &mut Context<'_>) -> Poll<()> {
        let mut space = [MaybeUninit::uninit(); 16 << 10];
        loop {
            let mut buffer = ReadBuf::uninit(&mut space);
            match self.stream.io().poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() && Instant::now() < until => {
                    self.deadline.as_mut().reset(until.min(Instant::now() + LINGER_PAUSE));
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return self.deadline.as_mut().poll(context),
            }
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.place.standing().poll_gone(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let before = buffer.filled().len();
        if let Poll::Ready(read) = self.stream.io().poll_read(context, buffer) {
            if read.is_ok() {
                self.head.read(&buffer.filled()[before..]);
            }
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
            self.answered();
        }
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.stream.io().poll_write_vectored(context, data);
        if written.is_ready() {
            self.answered();
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.io().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let until = match self.lingers_until {
            Some(until) => until,
            None => {
                ready!(self.stream.io().poll_shutdown(context))?;
                let now = Instant::now();
                self.deadline.as_mut().reset(now + LINGER_PAUSE);
                *self.lingers_until.insert(now + LINGER)
            }
        };
        self.poll_linger(until, context).map(Ok)
    }
}
