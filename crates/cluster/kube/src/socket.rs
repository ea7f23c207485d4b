//! The sockets that the kubelet connects to.

use std::fs;
use std::io;
use std::path::Path;

use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;

use crate::KubeError;

/// A socket of that name, in place of one that a killed program left.
pub(crate) fn listen(path: &Path) -> Result<UnixListenerStream, KubeError> {
    let bind = || -> io::Result<UnixListener> {
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        match fs::remove_file(path) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(why),
            _ => {}
        }
        UnixListener::bind(path)
    };
    bind().map(UnixListenerStream::new).map_err(|why| KubeError::Socket { path: path.to_owned(), why })
}

/// Waits for the signal to stop.
pub(crate) async fn stopped(mut stop: watch::Receiver<bool>) {
    // An error means that no receiver is left to report it to.
    let _ = stop.wait_for(|stop| *stop).await;
}
