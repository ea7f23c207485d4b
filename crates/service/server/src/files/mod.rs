//! `/files`: artifacts, models and debug images that tasks upload and download, as on ClearML's file server.
//!
//! `POST /files` takes a multipart form whose part names are object paths; `GET` (whole or a range) and `DELETE /files/<path>`
//! fetch and delete an object. Objects are plain files of a directory, or objects of a bucket: `directory` and `bucket`.

mod bucket;
mod deleted;
mod directory;
mod error;
mod location;
mod name;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, DefaultBodyLimit, Multipart, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use percent_encoding::percent_decode_str;

use crate::ServerError;
use crate::app::App;
use crate::door::Peer;
use crate::rights::{self, Act, Principal};

use bucket::{Bucket, BucketUpload};
pub(crate) use deleted::Deleted;
use directory::{Directory, FileUpload};
pub(crate) use error::FileError;
pub(crate) use location::{LOCATION, Location};
pub(crate) use name::is_plain;
use name::{ObjectName, RangeRequest};

/// The objects of a server.
#[derive(Debug)]
pub(crate) struct Files(Kind);

#[derive(Debug)]
enum Kind {
    Directory(Directory),
    Bucket(Bucket),
}

/// An object, or a part of it.
struct StoredObject {
    /// Of the whole object, in bytes.
    length: u64,
    /// The bytes that `body` has, if they are not all.
    part: Option<Range<u64>>,
    body: Body,
}

/// An object that arrives. No client sees any of it before [`Upload::finish`]; if it is dropped before, nothing of it
/// stays.
enum Upload {
    File(FileUpload),
    Object(Box<BucketUpload>),
}

/// A server that does not lead by then is not alone on its database.
const LEADS_WITHIN: Duration = Duration::from_secs(3);

/// Replicas have one database. Files in a directory are for the servers that have this directory, and for no other.
pub(crate) async fn warn_if_unshared(app: Arc<App>) {
    let Kind::Directory(directory) = &app.files.0 else { return };
    tokio::time::sleep(LEADS_WITHIN).await;
    if app.store.is_shared() && !app.leads() {
        tracing::warn!(
            "another server uses this database; files that this one receives are in {} and are missing there unless it has the same \
             directory: give all servers the same --files s3://BUCKET",
            directory.root().display()
        );
    }
}

impl Files {
    /// Opens the store. One that does not answer is no error: it may be back before the first call.
    ///
    /// # Errors
    /// [`ServerError::FileStore`] if the bucket does not exist or refuses the keys.
    pub(crate) async fn open(location: Location) -> Result<Self, ServerError> {
        let url = match location {
            Location::Directory(dir) => return Ok(Self(Kind::Directory(Directory::open(dir)))),
            Location::Bucket(url) => url,
        };
        let unusable = |why: &str, source| ServerError::FileStore {
            url: url.to_string(),
            why: why.to_owned(),
            source: Box::new(source),
        };
        let bucket =
            Bucket::open(url.clone()).map_err(|error| unusable("has settings that contradict", error))?;
        match bucket.probe().await {
            Err(error) if bucket::is_missing(&error) => return Err(unusable("does not exist", error)),
            Err(error) if bucket::is_refused(&error) => return Err(unusable("refuses these keys", error)),
            Err(error) => tracing::warn!("the file store {url} does not answer yet: {error}"),
            Ok(()) => {}
        }
        Ok(Self(Kind::Bucket(bucket)))
    }

    async fn begin(&self, name: &ObjectName) -> Result<Upload, FileError> {
        Ok(match &self.0 {
            Kind::Directory(directory) => Upload::File(directory.begin(name).await?),
            Kind::Bucket(bucket) => Upload::Object(Box::new(bucket.begin(name).await?)),
        })
    }

    async fn delete(&self, object: &str) -> Result<(), FileError> {
        let name = ObjectName::parse(object)?;
        match &self.0 {
            Kind::Directory(directory) => directory.delete(&name).await,
            Kind::Bucket(bucket) => bucket.delete(&name).await,
        }
    }

    async fn has(&self, object: &str) -> Result<bool, FileError> {
        match self.answer(&Method::HEAD, &HeaderMap::new(), object).await {
            Err(error) if error.is_gone() => Ok(false),
            found => found.map(|_| true),
        }
    }

    /// The object of this path, or the range of it that the headers ask for, as bytes of no particular type.
    pub(crate) async fn answer(
        &self,
        method: &Method,
        headers: &HeaderMap,
        path: &str,
    ) -> Result<Response, FileError> {
        let name = ObjectName::parse(path)?;
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        // Objects have no versions that a client could name: what it has a part of may be another one by now.
        let wanted = if text(header::IF_RANGE).is_some() {
            RangeRequest::Whole
        } else {
            RangeRequest::parse(text(header::RANGE))
        };
        let head = method == Method::HEAD;
        let found = match &self.0 {
            Kind::Directory(directory) => directory.find(&name, wanted, head).await?,
            Kind::Bucket(bucket) => bucket.find(&name, wanted, head).await?,
        };
        let Range { start, end } = found.part.clone().unwrap_or(0..found.length);
        let fields = [
            (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
            (header::ACCEPT_RANGES, "bytes".to_owned()),
            (header::CONTENT_LENGTH, (end - start).to_string()),
        ];
        let mut response = (fields, found.body).into_response();
        if found.part.is_some() {
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            if let Ok(range) = format!("bytes {start}-{}/{}", end - 1, found.length).parse() {
                response.headers_mut().insert(header::CONTENT_RANGE, range);
            }
        }
        Ok(response)
    }

    /// Deletes the objects that a task left, as far as these addresses name objects of this store and of that task. Returns
    /// how many there were.
    pub(crate) async fn erase(&self, task: &str, urls: &[String]) -> u64 {
        let mut erased = 0;
        for object in urls.iter().filter_map(|url| object_of(task, url)) {
            match self.delete(&object).await {
                Ok(()) => erased += 1,
                Err(FileError::BadName(_)) => {}
                Err(error) if error.is_gone() => {}
                Err(error) => tracing::warn!(%task, %object, "a file of a deleted task stays: {error}"),
            }
        }
        erased
    }
}

impl Upload {
    async fn write(&mut self, piece: &Bytes) -> Result<(), FileError> {
        match self {
            Self::File(upload) => upload.write(piece).await,
            Self::Object(upload) => upload.write(piece).await,
        }
    }

    async fn finish(self) -> Result<(), FileError> {
        match self {
            Self::File(upload) => upload.finish().await,
            Self::Object(upload) => upload.finish().await,
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
    match app.caller(authorization.or(cookie.as_deref()), &peer.address.ip().to_string()).await {
        Ok(who) => {
            peer.standing.has_shown_a_key();
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
) -> Result<axum::Json<Vec<String>>, FileError> {
    let mut stored = Vec::new();
    while let Some(mut field) = form.next_field().await? {
        let name = field.name().unwrap_or_default().to_owned();
        let object = ObjectName::parse(&name)?;
        rights::may_use_file(&app, &who, &name, Act::Change).await?;
        let mut upload = app.files.begin(&object).await?;
        while let Some(piece) = field.chunk().await? {
            upload.write(&piece).await?;
        }
        upload.finish().await?;
        stored.push(name);
    }
    Ok(axum::Json(stored))
}

async fn download(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Arc<Principal>>,
    method: Method,
    headers: HeaderMap,
    path: axum::extract::Path<String>,
) -> Result<Response, FileError> {
    rights::may_use_file(&app, &who, &path, Act::Read).await?;
    app.files.answer(&method, &headers, &path).await
}

async fn remove(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Arc<Principal>>,
    path: axum::extract::Path<String>,
) -> Result<axum::Json<String>, FileError> {
    let allowed = rights::may_use_file(&app, &who, &path, Act::Change).await;
    // ClearML's SDK has the server delete a task with its files, then deletes each file itself, and takes any other answer for
    // a failure. Where neither the file nor its task is left, there is nothing to protect.
    if let Err(refused) = allowed {
        let has_owner = rights::has_owner(&app, &path).await?;
        let was_theirs = !has_owner && app.deleted.are_by(&rights::tasks_in(&path), &who.user);
        if !was_theirs && (has_owner || app.files.has(&path).await?) {
            return Err(refused.into());
        }
    }
    match app.files.delete(&path).await {
        Err(error) if !error.is_gone() => Err(error),
        _ => Ok(axum::Json(path.0)),
    }
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
}
