//! The files of the page, which the build embeds into this program.

use axum::extract::Path;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rust_embed::RustEmbed;

#[derive(RustEmbed)]
#[folder = "../../../ui/dist"]
struct Dist;

const INDEX: &str = "index.html";
const NOT_BUILT: &str = "this build has no web page; make build has one, where Node.js is installed\n\
    the same is on the command line: cantle gpus, cantle queues, cantle tasks, cantle top\n";
/// Only what this server sends is loaded or run, and no other site may frame the page.
const POLICY: &str =
    "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'self'";
/// The frame that draws what tasks send: it has no origin, therefore no session, and it can make no requests. Its
/// library writes styles of its own.
const PLOTS: &str = "plots.html";
const PLOTS_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; \
    img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'; \
    sandbox allow-scripts allow-downloads";

pub(crate) async fn index() -> Response {
    serve(INDEX)
}

/// A file; any other path is one of the page's own addresses.
pub(crate) async fn file(Path(path): Path<String>) -> Response {
    match Dist::get(&path) {
        Some(_) => serve(&path),
        None if Dist::get(&packed(&path)).is_some() => serve(&path),
        None if path.starts_with("assets/") => StatusCode::NOT_FOUND.into_response(),
        None => serve(INDEX),
    }
}

/// The name of a big file's compressed form, which the build makes. Every browser that can show the page takes it.
fn packed(path: &str) -> String {
    format!("{path}.gz")
}

fn serve(path: &str) -> Response {
    let (file, is_packed) = match Dist::get(path) {
        Some(file) => (Some(file), false),
        None => (Dist::get(&packed(path)), true),
    };
    let Some(file) = file else {
        return (StatusCode::NOT_FOUND, NOT_BUILT).into_response();
    };
    // Names under `assets/` contain a hash of the content; everything else may change with the next version.
    let cache = if path.starts_with("assets/") { "public, max-age=31536000, immutable" } else { "no-cache" };
    let mut response = file.data.into_owned().into_response();
    let headers = response.headers_mut();
    let mut set = |name, value| headers.insert(name, HeaderValue::from_static(value));
    set(header::CONTENT_TYPE, content_type(path));
    set(header::CACHE_CONTROL, cache);
    set(header::CONTENT_SECURITY_POLICY, if path == PLOTS { PLOTS_POLICY } else { POLICY });
    if is_packed {
        set(header::CONTENT_ENCODING, "gzip");
    }
    if path.starts_with("assets/") {
        // For the frame without an origin. These files are the same everywhere; there is nothing to learn from them.
        set(header::ACCESS_CONTROL_ALLOW_ORIGIN, "*");
    }
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(header::REFERRER_POLICY, "same-origin");
    response
}

fn content_type(path: &str) -> &'static str {
    match path.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    }
}
