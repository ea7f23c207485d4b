//! Signals that a front end passes on to its task.

use std::io;

use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

pub(crate) type Signals = mpsc::UnboundedReceiver<Signal>;

/// Whether the terminal's own signals, Ctrl-C and Ctrl-\, are passed on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FromTerminal {
    /// They are: the task is not in the terminal's foreground process group.
    Forwarded,
    /// They reach the task by themselves and must not be passed on. They are caught nevertheless, so that this process
    /// outlives the task and can report how it ended.
    Caught,
}

/// The signals this process gets from now on, as far as they are for the task.
pub(crate) fn for_task(terminal: FromTerminal) -> io::Result<Signals> {
    let forwarded = terminal == FromTerminal::Forwarded;
    let kinds = [
        (SignalKind::interrupt(), Signal::SIGINT, forwarded),
        (SignalKind::quit(), Signal::SIGQUIT, forwarded),
        (SignalKind::terminate(), Signal::SIGTERM, true),
        (SignalKind::hangup(), Signal::SIGHUP, true),
        // By which people ask their programs for a checkpoint.
        (SignalKind::user_defined1(), Signal::SIGUSR1, true),
        (SignalKind::user_defined2(), Signal::SIGUSR2, true),
    ];
    let (sender, signals) = mpsc::unbounded_channel();
    for (kind, number, forwarded) in kinds {
        let mut stream = signal(kind)?;
        let sender = sender.clone();
        tokio::spawn(async move {
            while stream.recv().await.is_some() {
                if forwarded && sender.send(number).is_err() {
                    return;
                }
            }
        });
    }
    Ok(signals)
}
