//! A connection from outside to what listens in a task. It is made by a process of the task, so it reaches what the task reaches.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;

use serde::{Deserialize, Serialize};

use super::ExecError;

/// Where a program of a task listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskDoor {
    /// A TCP port of the loopback interface.
    Port(u16),
    /// A Unix socket.
    Socket(PathBuf),
}

impl fmt::Display for TaskDoor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port(port) => write!(f, "port {port}"),
            Self::Socket(path) => write!(f, "{}", path.display()),
        }
    }
}

impl TaskDoor {
    /// From this very process.
    pub(super) fn connect(&self) -> Result<Connected, ExecError> {
        let connected = match self {
            Self::Port(port) => {
                let at = [(Ipv4Addr::LOCALHOST, *port).into(), (Ipv6Addr::LOCALHOST, *port).into()];
                TcpStream::connect(&at[..] as &[SocketAddr]).map(Connected::Tcp)
            }
            Self::Socket(path) => UnixStream::connect(path).map(Connected::Unix),
        };
        connected.map_err(|why| ExecError::NoConnection { door: self.clone(), why: why.to_string() })
    }
}

/// An open connection.
#[derive(Debug)]
pub(super) enum Connected {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Connected {
    /// Copies stdin to it and from it to stdout, until its other side has sent all.
    pub(super) fn carry(self) -> ExitCode {
        let copied = match self {
            Self::Tcp(stream) => {
                // Keys that are typed in a browser are small pieces.
                let _ = stream.set_nodelay(true);
                stream.try_clone().and_then(|to| copy(to, stream, |to| to.shutdown(Shutdown::Write)))
            }
            Self::Unix(stream) => {
                stream.try_clone().and_then(|to| copy(to, stream, |to| to.shutdown(Shutdown::Write)))
            }
        };
        if copied.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

fn copy<S: Read + Write + Send + 'static>(
    to: S,
    from: S,
    end: impl FnOnce(&S) -> io::Result<()> + Send + 'static,
) -> io::Result<()> {
    // Nothing joins it: it may wait for input that never comes.
    thread::Builder::new().spawn(move || {
        if let Ok(to) = pieces(io::stdin().lock(), to) {
            // The program that listens in the task may have ended.
            let _ = end(&to);
        }
    })?;
    pieces(from, io::stdout().lock()).map(drop)
}

/// Not `io::copy`, which splices: a splice into a socket that takes nothing holds the lock of the pipe, and the agent at the other end
/// of the pipe waits for that lock, though it asked not to wait.
fn pieces<W: Write>(mut from: impl Read, mut to: W) -> io::Result<W> {
    let mut piece = vec![0; 32 << 10];
    loop {
        match from.read(&mut piece) {
            Ok(0) => return Ok(to),
            Ok(length) => {
                to.write_all(piece.get(..length).unwrap_or_default())?;
                to.flush()?;
            }
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            Err(why) => return Err(why),
        }
    }
}
