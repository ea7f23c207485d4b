//! Reads the frames of a command in a task from its connection.

use std::io;

use cantle_clearml::exec::{ExecFrame, ExecFrames};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Bytes that are read at once.
const PIECE: usize = 64 << 10;

/// The incoming half of a connection.
pub(crate) struct FrameReader<R> {
    from: R,
    frames: ExecFrames,
    piece: Vec<u8>,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(crate) fn new(from: R) -> Self {
        Self { from, frames: ExecFrames::default(), piece: vec![0; PIECE] }
    }

    /// The next frame. A call that is given up loses nothing.
    ///
    /// # Errors
    /// Also if the connection ends: the last frame is [`ExecFrame::Ended`].
    pub(crate) async fn next(&mut self) -> io::Result<ExecFrame> {
        loop {
            if let Some(frame) = self.frames.next_frame().map_err(io::Error::other)? {
                return Ok(frame);
            }
            let length = self.from.read(&mut self.piece).await?;
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.frames.push(self.piece.get(..length).unwrap_or_default());
        }
    }
}
