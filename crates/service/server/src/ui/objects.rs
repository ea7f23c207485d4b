//! Artifacts, models and debug samples, for the page: checks the session, and reads from the file server's store.
//!
//! Tasks choose what is in these files. A browser shows pictures, sound and films in the page. It saves everything else, so
//! that nothing of it ever runs with the rights of the page.

use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, Method, header};
use axum::response::{IntoResponse as _, Response};

use super::Ui;
use super::session::{Session, refuse};
use crate::rights::{self, Act};

/// Even if a browser showed such a file as a page, no script in it would run, and it would have no session.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; sandbox";

/// `GET /ui/-/files/{path}`
pub(crate) async fn object(
    State(ui): State<Ui>,
    method: Method,
    headers: HeaderMap,
    Path(path): Path<String>,
) -> Response {
    let app = &ui.api.app;
    let allowed = match Session::of(&ui, &headers) {
        Ok(session) => rights::may_use_file(app, &session.who, &path, Act::Read).await,
        Err(error) => Err(error),
    };
    if let Err(error) = allowed {
        return refuse(&error);
    }
    let mut response = match ui.api.app.files.answer(&method, &headers, &path).await {
        Ok(response) => response,
        Err(failure) => return failure.into_response(),
    };
    let headers = response.headers_mut();
    let (kind, disposition) = shown_as(&path);
    let mut set = |name, value| headers.insert(name, HeaderValue::from_static(value));
    set(header::CONTENT_TYPE, kind);
    set(header::CONTENT_DISPOSITION, disposition);
    set(header::CONTENT_SECURITY_POLICY, POLICY);
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(header::CACHE_CONTROL, "private, no-cache");
    response
}

/// The type of a file by its name, and whether a browser shows it. A drawing may hold scripts; as a picture they do not run.
fn shown_as(path: &str) -> (&'static str, &'static str) {
    let ending = std::path::Path::new(path).extension().and_then(std::ffi::OsStr::to_str).unwrap_or_default();
    let kind = match ending.to_ascii_lowercase().as_str() {
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "bmp" => "image/bmp",
        "mp4" | "mov" => "video/mp4",
        "webm" => "video/webm",
        "mp3" => "audio/mpeg",
        "wav" => "audio/wav",
        "ogg" => "audio/ogg",
        "flac" => "audio/flac",
        "svg" => return ("image/svg+xml", "attachment"),
        _ => return ("application/octet-stream", "attachment"),
    };
    (kind, "inline")
}

#[cfg(test)]
mod tests {
    use super::shown_as;

    #[test]
    fn only_pictures_sound_and_films_are_shown() {
        assert_eq!(shown_as("a/b.PNG"), ("image/png", "inline"));
        assert_eq!(shown_as("clip.mp4").1, "inline");
        for path in
            ["page.html", "x.svg", "x.js", "x.htm", "x.xml", "model.pkl", "png", "noending", "a.png/b"]
        {
            assert_eq!(shown_as(path).1, "attachment", "{path}");
        }
    }
}
