//! TLS of the server: reads the certificate from files, checks it before use, and reads it again when the files change.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, IpAddr as CertificateIp, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use tokio::sync::watch;
use webpki::{EndEntityCert, KeyUsage};

use crate::clock::{now_us, rfc3339};

/// How often the files are compared with what is in use.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The files of `--tls-cert`, `--tls-key` and `--tls-client-ca`, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, then those of the authorities between it and the one that clients trust.
    pub cert: PathBuf,
    /// The key of the first certificate.
    pub key: PathBuf,
    /// Authorities of the certificates that agents must show; none: agents need no certificate.
    pub client_ca: Option<PathBuf>,
}

/// Why these files are no use. Each is one line that states what is wrong; [`TlsError::hint`] has the remedy.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// It cannot be read.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// There is no such thing in it.
    #[error("{} has no {what} in PEM", path.display())]
    Missing {
        /// Which.
        path: PathBuf,
        /// `certificate` or `private key`.
        what: &'static str,
    },
    /// It is in PEM, but what is inside is wrong.
    #[error("{}: {why}", path.display())]
    Unusable {
        /// Which.
        path: PathBuf,
        /// In the words of the TLS library.
        why: String,
    },
    /// Key and certificate belong to different pairs.
    #[error("{} is not the key of the certificate {}", key.display(), cert.display())]
    WrongKey {
        /// As given.
        cert: PathBuf,
        /// As given.
        key: PathBuf,
    },
    /// It was valid once.
    #[error("the certificate {} expired on {at}; it is {now} now", path.display())]
    Expired {
        /// Which.
        path: PathBuf,
        /// RFC 3339.
        at: String,
        /// RFC 3339.
        now: String,
    },
    /// It will be valid some day, or this machine's clock is wrong.
    #[error("the certificate {} is not valid before {at}; it is {now} now", path.display())]
    NotYet {
        /// Which.
        path: PathBuf,
        /// RFC 3339.
        at: String,
        /// RFC 3339.
        now: String,
    },
}

impl TlsError {
    /// Hints for the user.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::File { .. } => "give a file that the server's user can read",
            Self::Missing { .. } | Self::Unusable { .. } => {
                "write the certificate, then its authorities, to one file and the key to another, both in PEM"
            }
            Self::WrongKey { .. } => {
                "give the key that was made together with the first certificate of the file"
            }
            Self::Expired { .. } => "renew the certificate, or set this machine's clock",
            Self::NotYet { .. } => "set this machine's clock, or wait until the certificate is valid",
        }
    }
}

/// A certificate that may be shown.
pub(crate) struct Shown {
    config: Arc<ServerConfig>,
    chain: Vec<CertificateDer<'static>>,
    /// The bytes of the files, to see whether they change.
    bytes: Vec<Vec<u8>>,
}

impl Shown {
    /// Reads and checks the files.
    pub(crate) fn load(files: &TlsFiles, now_us: i64) -> Result<Self, TlsError> {
        let bytes = read_all(files)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let chain = certificates(&files.cert, &bytes[0])?;
        let no_key = || TlsError::Missing { path: files.key.clone(), what: "private key" };
        let key = PrivateKeyDer::from_pem_slice(&bytes[1]).map_err(|_| no_key())?;
        check_dates(&files.cert, &chain[0], now_us)?;
        let certified = match CertifiedKey::from_der(chain.clone(), key, &provider) {
            Ok(certified) => certified,
            Err(rustls::Error::InconsistentKeys(_)) => {
                return Err(TlsError::WrongKey { cert: files.cert.clone(), key: files.key.clone() });
            }
            Err(error) => return Err(unusable(&files.key, &error)),
        };
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        // TLS 1.3 and 1.2, with the library's choice of ciphers: forward secrecy and authenticated encryption only.
        let builder = builder.with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| unusable(&files.cert, &error))?;
        let builder = match files.client_ca.as_deref().zip(bytes.get(2)) {
            None => builder.with_no_client_auth(),
            Some((path, pem)) => builder.with_client_cert_verifier(client_verifier(path, pem, provider)?),
        };
        let single = rustls::sign::SingleCertAndKey::from(certified);
        let mut config = builder.with_cert_resolver(Arc::new(single));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { config: Arc::new(config), chain, bytes })
    }

    /// A name that clients can use: `host` if the certificate has it, otherwise its first name that is no pattern.
    pub(crate) fn name_for(&self, host: std::net::IpAddr) -> Option<String> {
        let cert = EndEntityCert::try_from(&self.chain[0]).ok()?;
        let wanted = ServerName::IpAddress(CertificateIp::from(host));
        if cert.verify_is_valid_for_subject_name(&wanted).is_ok() {
            return None;
        }
        cert.valid_dns_names().find(|name| !name.contains('*')).map(str::to_owned)
    }

    /// The bytes of the files, and what is shown.
    pub(crate) fn into_parts(self) -> (Vec<Vec<u8>>, Arc<ServerConfig>) {
        (self.bytes, self.config)
    }
}

/// Certificate, key and, where there is one, the authorities of clients.
fn read_all(files: &TlsFiles) -> Result<Vec<Vec<u8>>, TlsError> {
    let paths = [Some(&files.cert), Some(&files.key), files.client_ca.as_ref()];
    let read =
        |path: &PathBuf| std::fs::read(path).map_err(|source| TlsError::File { path: path.clone(), source });
    paths.into_iter().flatten().map(read).collect()
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(TlsError::Missing { path: path.to_owned(), what: "certificate" }),
    }
}

fn client_verifier(
    path: &Path,
    pem: &[u8],
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>, TlsError> {
    let mut roots = rustls::RootCertStore::empty();
    for authority in certificates(path, pem)? {
        roots.add(authority).map_err(|error| unusable(path, &error))?;
    }
    // People and the SDK in tasks have none; which calls need one is decided where the call is known.
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    builder.allow_unauthenticated().build().map_err(|error| unusable(path, &error))
}

fn unusable(path: &Path, why: &dyn std::error::Error) -> TlsError {
    TlsError::Unusable { path: path.to_owned(), why: why.to_string() }
}

/// The library checks the dates before anything else, and here there is nothing else to check: without authorities no chain is
/// ever complete.
fn check_dates(path: &Path, cert: &CertificateDer<'_>, now_us: i64) -> Result<(), TlsError> {
    let end_entity = EndEntityCert::try_from(cert).map_err(|error| unusable(path, &error))?;
    let seconds = u64::try_from(now_us / 1_000_000).unwrap_or_default();
    let now = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
    let (path, at) = (path.to_owned(), |time: UnixTime| {
        rfc3339(i64::try_from(time.as_secs()).unwrap_or(i64::MAX).saturating_mul(1_000_000))
            .replace(".000000+00:00", "Z")
    });
    match end_entity.verify_for_usage(&[], &[], &[], now, KeyUsage::server_auth(), None, None) {
        Err(webpki::Error::CertExpired { not_after, .. }) => {
            Err(TlsError::Expired { path, at: at(not_after), now: at(now) })
        }
        Err(webpki::Error::CertNotValidYet { not_before, .. }) => {
            Err(TlsError::NotYet { path, at: at(not_before), now: at(now) })
        }
        _ => Ok(()),
    }
}

/// Reads the files again when they change, for new connections; open ones continue. Files that are no use leave the
/// certificate that is shown where it is.
pub(crate) async fn keep(files: TlsFiles, mut known: Vec<Vec<u8>>, shown: watch::Sender<Arc<ServerConfig>>) {
    let mut is_reported = false;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let bytes = match read_all(&files) {
            Ok(bytes) => bytes,
            Err(error) => {
                if !std::mem::replace(&mut is_reported, true) {
                    tracing::warn!("the certificate in use stays: {error}");
                }
                continue;
            }
        };
        is_reported = false;
        if bytes == known {
            continue;
        }
        match Shown::load(&files, now_us()) {
            Ok(identity) => {
                shown.send_replace(identity.config);
                tracing::info!(cert = %files.cert.display(), "new connections get the new certificate");
                known = identity.bytes;
            }
            Err(error) => {
                tracing::warn!("the certificate in use stays: {error}");
                known = bytes;
            }
        }
    }
}
