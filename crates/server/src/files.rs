//! `/files`: artifacts that tasks upload and download, as on ClearML's file server.
//!
//! `POST /files` takes a multipart form whose part names are object paths; `GET` and `DELETE /files/<path>` fetch and delete
//! an object. Objects are plain files under the state directory.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Multipart, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use futures_util::stream::try_unfold;
use percent_encoding::percent_decode_str;
use tokio::fs::{self, File};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::app::App;
use crate::clock::new_id;
use crate::door::Peer;
use crate::error::ApiError;
use crate::rights::{self, Act, Principal};

type Failure = (StatusCode, String);

const PIECE_BYTES: usize = 256 << 10;

/// Removes what uploads left that were cut off by the end of the last server.
pub(crate) fn sweep_partial(files_dir: &Path) {
    let Ok(entries) = std::fs::read_dir(files_dir) else { return };
    for entry in entries.filter_map(Result::ok) {
        if entry.file_name().as_encoded_bytes().first() == Some(&b'.') {
            // One that stays does no harm: no object can have its name.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Routes for files, with the same credentials as the API.
pub(crate) fn router<S: Clone + Send + Sync + 'static>(app: Arc<App>) -> Router<S> {
    let objects = get(download).delete(remove);
    Router::new()
        .route("/files", post(upload))
        .route("/files/", post(upload))
        .route("/files/{*path}", objects)
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn_with_state(Arc::clone(&app), check))
        .with_state(app)
}

async fn check(
    State(app): State<Arc<App>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    headers: HeaderMap,
    mut request: Request,
    next: Next,
) -> Response {
    let authorization = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    // SDKs send the token as a cookie where they show artifacts in a browser.
    let cookie = cookie_token(&headers).map(|token| format!("Bearer {token}"));
    match app.caller(authorization.or(cookie.as_deref()), &peer.address.ip().to_string()) {
        Ok(who) => {
            request.extensions_mut().insert(who);
            next.run(request).await
        }
        Err(error) => (StatusCode::UNAUTHORIZED, error.message).into_response(),
    }
}

fn cookie_token(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get(header::COOKIE)?.to_str().ok()?;
    cookies.split(';').find_map(|pair| pair.trim().strip_prefix("clearml_token_basic="))
}

async fn upload(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Arc<Principal>>,
    mut form: Multipart,
) -> Result<axum::Json<Vec<String>>, Failure> {
    let mut stored = Vec::new();
    let bad = |error: axum::extract::multipart::MultipartError| (StatusCode::BAD_REQUEST, error.to_string());
    while let Some(mut field) = form.next_field().await.map_err(bad)? {
        let name = field.name().unwrap_or_default().to_owned();
        let target = place(&app.files_dir, &name)?;
        rights::may_use_file(&app, &who, &name, Act::Change).await.map_err(refused)?;
        let directory = target.parent().unwrap_or(&app.files_dir).to_owned();
        fs::create_dir_all(&directory).await.map_err(|error| failed(&error))?;
        // Under another name first, which no object can have: half an object must not be fetched.
        let partial = app.files_dir.join(format!(".{}", new_id()));
        let mut file = File::create(&partial).await.map_err(|error| failed(&error))?;
        let written = async {
            while let Some(chunk) = field.chunk().await.map_err(bad)? {
                file.write_all(&chunk).await.map_err(|error| failed(&error))?;
            }
            file.sync_all().await.map_err(|error| failed(&error))?;
            fs::rename(&partial, &target).await.map_err(|error| failed(&error))
        };
        if let Err(failure) = written.await {
            fs::remove_file(&partial).await.ok();
            return Err(failure);
        }
        stored.push(name);
    }
    Ok(axum::Json(stored))
}

async fn download(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Arc<Principal>>,
    path: axum::extract::Path<String>,
) -> Result<Response, Failure> {
    rights::may_use_file(&app, &who, &path, Act::Read).await.map_err(refused)?;
    object(&app.files_dir, &path).await
}

fn refused(error: ApiError) -> Failure {
    (StatusCode::from_u16(error.code).unwrap_or(StatusCode::FORBIDDEN), error.message)
}

/// The object of this path, as bytes of no particular type.
pub(crate) async fn object(files_dir: &Path, path: &str) -> Result<Response, Failure> {
    let file = File::open(place(files_dir, path)?).await.map_err(|error| failed(&error))?;
    let about = file.metadata().await.map_err(|error| failed(&error))?;
    if !about.is_file() {
        return Err((StatusCode::NOT_FOUND, format!("{} is not an object", path.escape_default())));
    }
    // Piece by piece: objects may be larger than memory.
    let pieces = try_unfold(file, async |mut file| {
        let mut piece = vec![0; PIECE_BYTES];
        let length = file.read(&mut piece).await?;
        piece.truncate(length);
        Ok::<_, std::io::Error>((length > 0).then_some((piece, file)))
    });
    let head = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, about.len().to_string()),
    ];
    Ok((head, Body::from_stream(pieces)).into_response())
}

async fn remove(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Arc<Principal>>,
    path: axum::extract::Path<String>,
) -> Result<axum::Json<String>, Failure> {
    let target = place(&app.files_dir, &path)?;
    rights::may_use_file(&app, &who, &path, Act::Change).await.map_err(refused)?;
    fs::remove_file(&target).await.map_err(|error| failed(&error))?;
    Ok(axum::Json(path.0))
}

/// Deletes the objects that a task left, as far as these addresses name objects of this file store and of that task. Returns
/// how many there were.
pub(crate) async fn erase(files_dir: &Path, task: &str, urls: &[String]) -> u64 {
    let mut erased = 0;
    for object in urls.iter().filter_map(|url| object_of(task, url)) {
        let Ok(path) = place(files_dir, &object) else { continue };
        match fs::remove_file(&path).await {
            Ok(()) => erased += 1,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(%task, %object, "a file of a deleted task stays: {error}"),
        }
        // Directories that are empty now; the first one that is not ends it.
        let parents = path.ancestors().skip(1).take_while(|parent| *parent != files_dir);
        for parent in parents {
            if fs::remove_dir(parent).await.is_err() {
                break;
            }
        }
    }
    erased
}

/// The object that an address means, if it is in the directory of this task, which clients call `NAME.ID`: another task's
/// files, which a task may name as its own, are not its to delete.
fn object_of(task: &str, url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let (_, path) = rest.split_once('/').filter(|_| matches!(scheme, "http" | "https"))?;
    let path = percent_decode_str(path.strip_prefix("files/")?).decode_utf8().ok()?;
    let is_of_task = |part: &str| part.strip_suffix(task).is_some_and(|name| name.ends_with('.'));
    path.split('/').any(is_of_task).then(|| path.into_owned())
}

/// Made of names alone: it leads nowhere else.
pub(crate) fn is_plain(path: &Path) -> bool {
    path.components().all(|part| match part {
        Component::Normal(name) => !name.as_encoded_bytes().contains(&0),
        _ => false,
    })
}

/// The file of an object. Paths that lead out of the directory, or to names that the server uses itself, are refused.
fn place(dir: &Path, object: &str) -> Result<PathBuf, Failure> {
    let relative = Path::new(object.trim_start_matches('/'));
    let hidden_at_top = relative.as_os_str().as_encoded_bytes().first() == Some(&b'.');
    if relative.as_os_str().is_empty() || hidden_at_top || !is_plain(relative) {
        return Err((
            StatusCode::BAD_REQUEST,
            format!("\"{}\" is not an object path", object.escape_default()),
        ));
    }
    Ok(dir.join(relative))
}

fn failed(error: &std::io::Error) -> Failure {
    let status = match error.kind() {
        std::io::ErrorKind::NotFound => StatusCode::NOT_FOUND,
        std::io::ErrorKind::IsADirectory
        | std::io::ErrorKind::NotADirectory
        | std::io::ErrorKind::AlreadyExists
        | std::io::ErrorKind::InvalidFilename => StatusCode::BAD_REQUEST,
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            StatusCode::INSUFFICIENT_STORAGE
        }
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_owns_what_is_in_its_directory() {
        let of = |url| object_of("0a1b", url);
        assert_eq!(
            of("http://h:8008/files/P%201/train.0a1b/artifacts/x").unwrap(),
            "P 1/train.0a1b/artifacts/x"
        );
        for other in [
            "http://h/files/P1/train.ffff/artifacts/x",
            "http://h/files/P1/0a1b/x",
            "http://h/P1/train.0a1b/x",
            "s3://bucket/P1/train.0a1b/x",
            "file:///files/train.0a1b/x",
            "train.0a1b/x",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn objects_stay_inside() {
        let dir = Path::new("/state/files");
        assert_eq!(place(dir, "P1/train.1/a b.json").unwrap(), dir.join("P1/train.1/a b.json"));
        assert_eq!(place(dir, "/P1/x").unwrap(), dir.join("P1/x"));
        for bad in ["", "/", "..", "../x", "a/../../x", ".hidden", "a/./../..", "x\0y"] {
            assert!(place(dir, bad).is_err(), "{bad:?}");
        }
    }
}
