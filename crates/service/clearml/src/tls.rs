//! TLS of the client: the authorities it trusts, the certificate it presents, and the meaning of a refusal.

use std::path::{Path, PathBuf};

use reqwest::{Certificate, ClientBuilder, Identity};

use crate::WireError;

/// The authorities that a client trusts, and the certificate that it presents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientTls {
    /// Authorities in PEM, and no others; none: those of the system (`SSL_CERT_FILE` names other ones).
    pub ca: Option<PathBuf>,
    /// The client's certificate and its key, both in PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl ClientTls {
    /// A client with these settings. A system without certificates of authorities is none that https works on; http needs none.
    pub(crate) fn build(
        &self,
        settings: impl Fn() -> ClientBuilder,
        scheme: &str,
    ) -> Result<Result<reqwest::Client, reqwest::Error>, WireError> {
        let mut builder = settings();
        if let Some(path) = &self.ca {
            let wrong = || WireError::Certificates { path: path.clone(), what: "certificate" };
            let found = Certificate::from_pem_bundle(&read(path)?).map_err(|_| wrong())?;
            if found.is_empty() {
                return Err(wrong());
            }
            builder = builder.tls_certs_only(found);
        }
        if let Some((cert, key)) = &self.identity {
            let pem = [read(cert)?, b"\n".to_vec(), read(key)?].concat();
            let wrong = |_| WireError::Certificates { path: cert.clone(), what: "certificate with its key" };
            builder = builder.identity(Identity::from_pem(&pem).map_err(wrong)?);
        }
        Ok(match builder.build() {
            Err(_) if scheme == "http" => settings().tls_certs_only([]).build(),
            built => built,
        })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, WireError> {
    std::fs::read(path).map_err(|source| WireError::File { path: path.to_owned(), source })
}

/// Explains an error of the TLS library to the user, with a remedy; `None` if it is not about TLS.
pub(crate) fn explain(url: &str, reason: &str) -> Option<(String, &'static str)> {
    let has = |text: &str| reason.contains(text);
    if has("received corrupt message") && url.starts_with("https:") {
        let what = "it does not speak TLS there".to_owned();
        return Some((what, "write http:// if this server speaks plain HTTP"));
    }
    if let Some(alert) = reason.strip_prefix("received fatal alert: ") {
        let what = format!("it refused the connection ({alert})");
        return Some((
            what,
            "a certificate of this client is refused: check CANTLE_CLIENT_CERT and its dates",
        ));
    }
    let why = reason.strip_prefix("invalid peer certificate: ")?;
    let about = |what: &str| what.to_owned();
    Some(if has("UnknownIssuer") || has("BadSignature") || has("CaUsedAsEndEntity") {
        (
            about("its certificate is from an authority that this machine does not trust"),
            "name the authority's certificate with --ca FILE or CANTLE_CA_FILE",
        )
    } else if has("expired") || has("Expired") {
        (
            format!("its certificate is out of date ({why})"),
            "renew it on the server, or set this machine's clock",
        )
    } else if has("not valid yet") || has("NotValidYet") {
        (format!("its certificate is not valid yet ({why})"), "set this machine's clock, or the server's")
    } else if has("not valid for name") || has("NotValidForName") {
        (
            format!("its certificate is for another name ({why})"),
            "call the server by a name of its certificate, or make a certificate with this name",
        )
    } else {
        (format!("its certificate is refused ({why})"), "make a new certificate for the server")
    })
}
