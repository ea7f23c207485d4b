//! The authorities that programs in tasks trust: with a private one (`--ca`), ClearML's SDK in a task would try for hours to
//! reach the server. It reads them from `REQUESTS_CA_BUNDLE`, as `pip` and most programs in Python do, and trusts no others then; so
//! they are the system's and the private one in one file.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use cantle_clearml::ClientTls;
use cantle_node::NodeError;
use cantle_runtime::AUTHORITIES;

/// Where distributions keep the authorities of the system.
const OF_SYSTEM: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The file of the authorities for tasks; `None` if tasks need none of it: there is no private authority, or the agent's own
/// environment, which processes inherit, names a file already.
///
/// # Errors
/// If a file cannot be read or written.
pub(crate) fn for_tasks(tls: &ClientTls, server: &str, state: &Path) -> Result<Option<PathBuf>, NodeError> {
    let Some(ca) = tls.ca.as_ref().filter(|_| server.starts_with("https:")) else { return Ok(None) };
    if std::env::var_os(AUTHORITIES).is_some() {
        return Ok(None);
    }
    let mut all = OF_SYSTEM.iter().find_map(|path| fs::read(path).ok()).unwrap_or_default();
    if all.is_empty() {
        tracing::warn!("no authorities of the system were found: programs in tasks trust those of --ca only");
    }
    all.push(b'\n');
    all.extend(fs::read(ca).map_err(|why| NodeError::file(ca, why))?);
    let file = state.join("authorities.crt");
    let fresh = state.join("authorities.new");
    let written = fs::create_dir_all(state)
        .and_then(|()| fs::write(&fresh, &all))
        // A task of another user reads it, too.
        .and_then(|()| fs::set_permissions(&fresh, fs::Permissions::from_mode(0o644)))
        .and_then(|()| fs::rename(&fresh, &file));
    written.map_err(|why| NodeError::file(&file, why))?;
    Ok(Some(file))
}
