//! The messages to the sending thread.

use std::sync::mpsc::SyncSender;

use super::span::Span;

/// A message to the sender.
pub(super) enum ExportMessage {
    Span(Box<Span>),
    /// Send what there is and end.
    Last(SyncSender<()>),
}
