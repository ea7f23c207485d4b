//! `--open`: protects a server without credentials from the web sites that its user visits.
//!
//! A browser on this machine can send requests of any site to loopback. A request from another site has the headers
//! `Origin` and `Sec-Fetch-Site`, and a site that points its own name at loopback shows in `Host`. Clients other than
//! browsers send neither of the first two.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Uri, header};
use axum::middleware::Next;
use axum::response::Response;

use crate::app::App;
use crate::error::ApiError;
use crate::ui::refuse;

/// The files of the web page, which tell nothing: the frame that draws plots has no origin, and so is another site.
const PUBLIC: &str = "/ui/assets/";

/// Lets every request through to a server with credentials, and to an open one those that were meant for it.
pub(crate) async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    if app.keys.is_open()
        && !request.uri().path().starts_with(PUBLIC)
        && let Err(error) = check(request.headers(), app.door.scheme())
    {
        return refuse(&error);
    }
    next.run(request).await
}

fn check(headers: &HeaderMap, scheme: &str) -> Result<(), ApiError> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let forbidden = |why: String| Err(ApiError::new(403, 0, format!("Forbidden ({why})")));
    let host = text(header::HOST.as_str()).unwrap_or_default();
    if !is_loopback(host) {
        return forbidden(format!("an open server is called 127.0.0.1, [::1] or localhost, not \"{host}\""));
    }
    let own = format!("{scheme}://{host}");
    if let Some(origin) = text(header::ORIGIN.as_str()).filter(|origin| *origin != own) {
        return forbidden(format!("an open server takes nothing from {origin}"));
    }
    match text("sec-fetch-site") {
        None | Some("same-origin" | "none") => Ok(()),
        Some(_) => forbidden("an open server takes nothing from other sites".to_owned()),
    }
}

/// Whether this, with or without a port, is a name that can only mean this machine.
fn is_loopback(host: &str) -> bool {
    // Neither belongs into a Host header; both would make a URI mean another host.
    if host.contains(['@', '/']) {
        return false;
    }
    let Ok(uri) = Uri::try_from(format!("http://{host}/")) else { return false };
    let name = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn answer(headers: &[(&'static str, &'static str)]) -> bool {
        let pair = |&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value));
        check(&headers.iter().map(pair).collect(), "http").is_ok()
    }

    #[test]
    fn names_of_this_machine() {
        for host in ["127.0.0.1:8008", "localhost:8008", "LOCALHOST", "[::1]:8008", "127.1.2.3"] {
            assert!(answer(&[("host", host)]), "{host}");
        }
        for host in ["", "evil.example:8008", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1"]
        {
            assert!(!answer(&[("host", host)]), "{host}");
        }
        assert!(!answer(&[]));
        assert!(!is_loopback("evil.example@127.0.0.1/") && !is_loopback("evil.example/127.0.0.1"));
    }

    #[test]
    fn other_sites_are_refused() {
        let from = |name, value| answer(&[("host", "127.0.0.1:8008"), (name, value)]);
        assert!(from("origin", "http://127.0.0.1:8008"), "the page itself");
        assert!(from("sec-fetch-site", "same-origin") && from("sec-fetch-site", "none"));
        for origin in ["http://evil.example", "null", "http://127.0.0.1:9999", "https://127.0.0.1:8008"] {
            assert!(!from("origin", origin), "{origin}");
        }
        for site in ["cross-site", "same-site"] {
            assert!(!from("sec-fetch-site", site), "{site}");
        }
    }
}
