//! This machine and this process, as the kernel sees them.

use tokio::signal::unix::{SignalKind, signal};

use crate::error::{CliError, ErrorKind, as_kind};

/// The machine's name.
pub(crate) fn host_name() -> Result<String, CliError> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").map_err(as_kind(ErrorKind::Failed))?;
    Ok(name.trim().to_owned())
}

/// Whether this process runs as root.
pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|of| of.uid() == 0)
}

/// Tells the service manager that started this process, if one did (systemd's `Type=notify`), that it serves.
pub(crate) fn report_ready() {
    if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
        tracing::warn!(target: "cantle", "cannot tell systemd that the service is ready: {error}");
    }
}

/// Returns when this process is asked to end: by SIGTERM or SIGINT.
pub(crate) async fn until_signal() {
    let signals = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    if let (Ok(mut terminate), Ok(mut interrupt)) = signals {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    }
}
