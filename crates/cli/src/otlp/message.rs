//! What goes to the thread that sends.

use std::sync::mpsc::SyncSender;

use super::span::Span;

/// A message to the sender.
pub(super) enum ExportMessage {
    Span(Box<Span>),
    /// Send what there is and end.
    Last(SyncSender<()>),
}
