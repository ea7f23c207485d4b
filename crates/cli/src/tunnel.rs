//! Connections from this machine into a task: to a task of this machine directly, to others through the server.

use std::io;
use std::sync::Arc;

use cantle_clearml::Client;
use cantle_clearml::exec::{ExecDoor, ExecEnd, ExecFrame, ExecSide, ExecStart, OpenExec};
use cantle_model::Holder;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, split};
use tokio::net::TcpStream;

use crate::error::{CliError, ErrorKind};
use crate::frames::FrameReader;

/// The size of a piece.
const PIECE: usize = 32 << 10;
/// Of what waits between the two ends on this machine.
const BUFFER_BYTES: usize = 256 << 10;

/// A stream of frames.
trait Frames: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Frames for S {}

/// The way into a task.
pub(crate) enum Tunnel {
    /// Of this machine, by its first process.
    Here(Holder),
    /// Of any node.
    Server {
        /// Of the server.
        client: Arc<Client>,
        /// The task's id.
        task: String,
    },
}

impl Tunnel {
    async fn open(&self, to: ExecDoor) -> Result<Box<dyn Frames>, CliError> {
        let start = ExecStart { to: Some(to), ..ExecStart::default() };
        match self {
            Self::Here(leader) => {
                let (ours, theirs) = tokio::io::duplex(BUFFER_BYTES);
                tokio::spawn(cantle_agent::serve_exec(*leader, start, theirs, None));
                Ok(Box::new(ours))
            }
            Self::Server { client, task } => {
                let request = OpenExec { task: task.clone(), start, ..OpenExec::default() };
                let exec = client.call(&request).await?.exec;
                Ok(Box::new(client.connect(&exec, ExecSide::User).await?))
            }
        }
    }

    /// Connects one client with what listens in the task, until one of the two has closed.
    ///
    /// # Errors
    /// If there is no connection into the task, or nothing listens there.
    pub(crate) async fn carry(&self, client: TcpStream, to: ExecDoor) -> Result<(), CliError> {
        // Keys that are typed in a browser are small pieces.
        let _ = client.set_nodelay(true);
        let (reader, writer) = split(self.open(to).await?);
        let (from_client, to_client) = client.into_split();
        let sending = tokio::spawn(send(from_client, writer));
        let end = receive(reader, to_client).await;
        sending.abort();
        match end {
            Ok(ExecEnd { code, error: Some(error), hint }) => {
                Err(CliError::new(ErrorKind::of_exit_code(code), error).with_hints(hint))
            }
            // The client, or the program of the task, has closed the connection: that is theirs.
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

async fn send(mut client: impl AsyncRead + Unpin, mut writer: impl AsyncWrite + Unpin) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        let length = client.read(&mut piece).await?;
        let bytes = piece.get(..length).unwrap_or_default();
        let frame = if bytes.is_empty() { ExecFrame::InputEnd } else { ExecFrame::Input(bytes.to_vec()) };
        writer.write_all(&frame.to_bytes()).await?;
        writer.flush().await?;
        if length == 0 {
            // The writer stays open: to close it would end the connection in both directions.
            return std::future::pending().await;
        }
    }
}

async fn receive(reader: impl AsyncRead + Unpin, mut client: impl AsyncWrite + Unpin) -> io::Result<ExecEnd> {
    let mut frames = FrameReader::new(reader);
    loop {
        match frames.next().await? {
            ExecFrame::Output(bytes) => client.write_all(&bytes).await?,
            ExecFrame::Ended(end) => {
                client.shutdown().await?;
                return Ok(end);
            }
            _ => {}
        }
    }
}
