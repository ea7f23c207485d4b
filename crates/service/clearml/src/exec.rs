//! A command in a running task: the calls that open it, and the frames in which its input and output travel between the two
//! programs at its ends. A server in between passes the bytes on and does not read them.
//!
//! ```text
//! frame   kind (1 byte), length (4 bytes, big-endian), as many bytes
//! ```

use serde::{Deserialize, Serialize};

use crate::wire::endpoint;

/// The largest payload of a frame. A longer one is an error.
pub const EXEC_FRAME_MAX: usize = 64 << 10;
const HEAD: usize = 5;

/// A command to run in a task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecStart {
    /// Program and arguments; none for the shell of the task's user.
    pub argv: Vec<String>,
    /// The terminal that it gets; pipes if none.
    pub window: Option<ExecWindow>,
    /// Instead of a command: a connection to what listens here.
    pub to: Option<ExecDoor>,
}

/// Where a program of the task listens, as the task sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecDoor {
    /// A TCP port of its loopback interface.
    Port(u16),
    /// The path of a Unix socket.
    Socket(String),
}

/// The terminal of the user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecWindow {
    /// The value of `TERM`.
    pub kind: String,
    /// Its height.
    pub rows: u16,
    /// Its width.
    pub columns: u16,
}

/// `cantle.open_exec`: opens a command in a task. The caller then connects to [`exec_path`], and so does the node of the task.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OpenExec {
    /// The task's id.
    pub task: String,
    /// The command.
    pub start: ExecStart,
    /// Wait until a task that is queued runs.
    pub waits: bool,
    /// Stop the task when the command has ended, or its caller is gone.
    pub ends_task: bool,
}
endpoint!("cantle.open_exec", OpenExec => OpenedExec);

/// Answer of `cantle.open_exec`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct OpenedExec {
    /// The command's id.
    pub exec: String,
}

/// `cantle.wait_for_execs`: waits until there is a command for a task of this node. For agents.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WaitForExecs {
    /// Name of the node.
    pub node: String,
    /// How long to wait, in milliseconds; at most 10,000.
    pub wait_ms: u64,
}
endpoint!("cantle.wait_for_execs", WaitForExecs => AskedExecs);

/// Answer of `cantle.wait_for_execs`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AskedExecs {
    /// Each is returned once.
    pub execs: Vec<AskedExec>,
}

/// A command that a node is to run in a task.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AskedExec {
    /// The command's id.
    pub exec: String,
    /// The task's id.
    pub task: String,
    /// The command.
    pub start: ExecStart,
}

/// The two ends of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecSide {
    /// Of the user.
    User,
    /// Of the node.
    Node,
}

/// The protocol that the connection of a command changes to.
pub const EXEC_PROTOCOL: &str = "cantle-exec";

/// The address of one end of a command, below that of the server.
#[must_use]
pub fn exec_path(exec: &str, side: ExecSide) -> String {
    match side {
        ExecSide::User => format!("cantle/exec/{exec}"),
        ExecSide::Node => format!("cantle/exec/{exec}/node"),
    }
}

/// How a command in a task ended, or why it did not start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecEnd {
    /// Its exit code, 128+N for a signal; the code of the error if it did not start.
    pub code: u8,
    /// Why it did not start, or was ended.
    pub error: Option<String>,
    /// The remedy.
    pub hint: Option<String>,
}

/// A frame of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecFrame {
    /// For stdin or the terminal.
    Input(Vec<u8>),
    /// Stdin has ended.
    InputEnd,
    /// The window has another size: rows, columns.
    Resize(u16, u16),
    /// Of stdout or the terminal.
    Output(Vec<u8>),
    /// Of stderr.
    Errors(Vec<u8>),
    /// Nothing: the sender lives.
    Ping,
    /// The last one.
    Ended(ExecEnd),
}

/// Bytes that are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other side does not speak cantle's frames")]
pub struct ExecFrameError;

impl ExecFrame {
    /// As it travels. A frame that is longer than [`EXEC_FRAME_MAX`] must be divided before.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let (kind, payload) = match self {
            Self::Input(bytes) => (1, bytes.clone()),
            Self::InputEnd => (2, Vec::new()),
            Self::Resize(rows, columns) => (3, [rows.to_be_bytes(), columns.to_be_bytes()].concat()),
            Self::Output(bytes) => (4, bytes.clone()),
            Self::Errors(bytes) => (5, bytes.clone()),
            Self::Ping => (6, Vec::new()),
            Self::Ended(end) => (7, serde_json::to_vec(end).unwrap_or_default()),
        };
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let mut bytes = Vec::with_capacity(HEAD + payload.len());
        bytes.push(kind);
        bytes.extend(length.to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    fn of(kind: u8, payload: &[u8]) -> Result<Self, ExecFrameError> {
        Ok(match (kind, payload) {
            (1, bytes) => Self::Input(bytes.to_vec()),
            (2, []) => Self::InputEnd,
            (3, [a, b, c, d]) => Self::Resize(u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d])),
            (4, bytes) => Self::Output(bytes.to_vec()),
            (5, bytes) => Self::Errors(bytes.to_vec()),
            (6, []) => Self::Ping,
            (7, json) => Self::Ended(serde_json::from_slice(json).map_err(|_| ExecFrameError)?),
            _ => return Err(ExecFrameError),
        })
    }
}

/// Puts frames together from bytes as they arrive. It keeps at most one frame and one read.
#[derive(Debug, Default)]
pub struct ExecFrames(Vec<u8>);

impl ExecFrames {
    /// More bytes have arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next frame, if it is complete.
    ///
    /// # Errors
    /// If it is none; nothing after it can be read then.
    pub fn next_frame(&mut self) -> Result<Option<ExecFrame>, ExecFrameError> {
        let [kind, a, b, c, d, rest @ ..] = self.0.as_slice() else { return Ok(None) };
        let length = usize::try_from(u32::from_be_bytes([*a, *b, *c, *d])).map_err(|_| ExecFrameError)?;
        if length > EXEC_FRAME_MAX {
            return Err(ExecFrameError);
        }
        let Some(payload) = rest.get(..length) else { return Ok(None) };
        let frame = ExecFrame::of(*kind, payload)?;
        self.0.drain(..HEAD + length);
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_arrive_as_they_were_sent_in_any_pieces() {
        let end = ExecEnd { code: 7, error: Some("no".to_owned()), hint: None };
        let sent = [
            ExecFrame::Input(b"ls\n".to_vec()),
            ExecFrame::InputEnd,
            ExecFrame::Resize(50, 200),
            ExecFrame::Output(vec![0; EXEC_FRAME_MAX]),
            ExecFrame::Errors(Vec::new()),
            ExecFrame::Ping,
            ExecFrame::Ended(end),
        ];
        let bytes: Vec<u8> = sent.iter().flat_map(ExecFrame::to_bytes).collect();
        for piece in [1, 7, 1000, bytes.len()] {
            let (mut frames, mut found) = (ExecFrames::default(), Vec::new());
            for part in bytes.chunks(piece) {
                frames.push(part);
                while let Some(frame) = frames.next_frame().unwrap() {
                    found.push(frame);
                }
            }
            assert_eq!(found, sent);
        }
    }

    #[test]
    fn what_is_no_frame_ends_it() {
        for bytes in
            [&[9, 0, 0, 0, 0][..], &[4, 0, 1, 0, 1], &[3, 0, 0, 0, 1, 0], &[7, 0, 0, 0, 1, b'{'], b"HTTP/1.1"]
        {
            let mut frames = ExecFrames::default();
            frames.push(bytes);
            assert_eq!(frames.next_frame(), Err(ExecFrameError), "{bytes:?}");
        }
    }
}
