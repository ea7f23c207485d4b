//! Objects of a bucket, in any store that speaks S3. Keys, region and endpoint come from the variables that all clients of S3 read
//! (`AWS_*`), or from the role of the machine or pod.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures_util::StreamExt as _;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::client::ClientConfigKey;
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, Error, GetOptions, GetRange, MultipartUpload, ObjectStore as _,
    ObjectStoreExt as _, PutPayload, PutPayloadMut, RetryConfig,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;

use super::name::{ObjectName, RangeRequest};
use super::{FileError, StoredObject};

/// A bucket has at most 10,000 parts per object. The first parts are small, for the server's memory; those behind this one are
/// large, so that an object may have 350 GiB.
const SMALL_PARTS: usize = 5000;
const SMALL_PART_BYTES: usize = 8 << 20;
const LARGE_PART_BYTES: usize = 64 << 20;
/// Each upload keeps at most two parts in memory.
const UPLOADS: usize = 8;
/// The time for which a call is retried; a waiting client gives up later.
const RETRY: Duration = Duration::from_secs(10);
const CONNECT: &str = "3s";
/// How long a store may be silent before it counts as away.
const SILENCE: &str = "60s";

/// The bucket, and the prefix in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BucketUrl {
    bucket: String,
    prefix: String,
}

impl BucketUrl {
    /// Of `s3://BUCKET[/PREFIX]`; `None` for anything else.
    pub(super) fn parse(url: &str) -> Option<Self> {
        let rest = url.strip_prefix("s3://")?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_name =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-');
        let prefix = prefix.trim_end_matches('/');
        let is_prefix = prefix.is_empty() || !prefix.starts_with('/') && Path::parse(prefix).is_ok();
        let valid = bucket.len() >= 3 && bucket.bytes().all(is_name) && is_prefix;
        valid.then(|| Self { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
    }
}

impl std::fmt::Display for BucketUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let slash = if self.prefix.is_empty() { "" } else { "/" };
        write!(f, "s3://{}{slash}{}", self.bucket, self.prefix)
    }
}

#[derive(Debug)]
pub(super) struct Bucket {
    store: Arc<AmazonS3>,
    url: BucketUrl,
    uploads: Arc<Semaphore>,
}

impl Bucket {
    /// # Errors
    /// If the variables contradict each other.
    pub(super) fn open(url: BucketUrl) -> Result<Self, Error> {
        let client = ClientOptions::new()
            // Of a whole transfer: a large object takes its time.
            .with_timeout_disabled()
            .with_config(ClientConfigKey::ReadTimeout, SILENCE)
            .with_config(ClientConfigKey::ConnectTimeout, CONNECT);
        let retry = RetryConfig { backoff: BackoffConfig::default(), max_retries: 5, retry_timeout: RETRY };
        let builder = AmazonS3Builder::from_env().with_bucket_name(&url.bucket).with_retry(retry);
        // An address without TLS is intended.
        let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint).unwrap_or_default();
        let client = client.with_allow_http(endpoint.starts_with("http://"));
        let store = Arc::new(builder.with_client_options(client).build()?);
        Ok(Self { store, url, uploads: Arc::new(Semaphore::new(UPLOADS)) })
    }

    /// Asks the store for anything below the prefix.
    pub(super) async fn probe(&self) -> Result<(), Error> {
        let prefix = Path::parse(&self.url.prefix)?;
        self.store.list(Some(&prefix)).next().await.transpose().map(drop)
    }

    fn key(&self, name: &ObjectName) -> Result<Path, FileError> {
        let slash = if self.url.prefix.is_empty() { "" } else { "/" };
        let key = format!("{}{slash}{}", self.url.prefix, name.as_str());
        Path::parse(key).map_err(|_| FileError::BadName(name.as_str().to_owned()))
    }

    pub(super) async fn begin(&self, name: &ObjectName) -> Result<BucketUpload, FileError> {
        // It is never closed.
        let turn = Arc::clone(&self.uploads).acquire_owned().await.ok();
        Ok(BucketUpload {
            store: Arc::clone(&self.store),
            url: self.url.clone(),
            key: self.key(name)?,
            piece: PutPayloadMut::new(),
            parts: Parts::default(),
            sent: 0,
            _turn: turn,
        })
    }

    pub(super) async fn find(
        &self,
        name: &ObjectName,
        wanted: RangeRequest,
        head: bool,
    ) -> Result<StoredObject, FileError> {
        let key = self.key(name)?;
        let fail = |error| failed(&self.url, name.as_str(), error);
        let mut options = GetOptions::new();
        if head || wanted != RangeRequest::Whole {
            let meta = self.store.head(&key).await.map_err(fail)?;
            let part = wanted.of(meta.size)?;
            if head {
                return Ok(StoredObject { length: meta.size, part, body: Body::empty() });
            }
            // The bytes of the object whose length was read, not of one that was put in its place since.
            options = options.with_range(part.map(GetRange::Bounded)).with_if_match(meta.e_tag);
        }
        let found = self.store.get_opts(&key, options).await.map_err(fail)?;
        let length = found.meta.size;
        let part = (wanted != RangeRequest::Whole).then(|| found.range.clone());
        Ok(StoredObject { length, part, body: Body::from_stream(found.into_stream()) })
    }

    pub(super) async fn delete(&self, name: &ObjectName) -> Result<(), FileError> {
        let key = self.key(name)?;
        let fail = |error| failed(&self.url, name.as_str(), error);
        // Stores answer that they deleted what they do not have, too.
        self.store.head(&key).await.map_err(fail)?;
        self.store.delete(&key).await.map_err(fail)
    }
}

/// There is no such bucket. A list has no error kind of its own, so the code of S3 is searched.
pub(super) fn is_missing(error: &Error) -> bool {
    matches!(error, Error::NotFound { .. }) || error.to_string().contains("<Code>NoSuchBucket</Code>")
}

/// The store answers that these keys may not do that; of a list, too, with its status alone.
pub(super) fn is_refused(error: &Error) -> bool {
    let of_list = || {
        let text = error.to_string();
        ["401", "403"].iter().any(|status| text.contains(&format!("non-2xx status code: {status}")))
    };
    matches!(error, Error::PermissionDenied { .. } | Error::Unauthenticated { .. }) || of_list()
}

/// Parts of an object. They are aborted unless the object is complete, so that the store does not keep them.
#[derive(Default)]
struct Parts {
    upload: Option<Box<dyn MultipartUpload>>,
    /// The part that is being sent.
    sending: Option<JoinHandle<object_store::Result<()>>>,
}

impl Drop for Parts {
    fn drop(&mut self) {
        let sending = self.sending.take();
        if let Some(mut upload) = self.upload.take() {
            tokio::spawn(async move {
                // Stores keep a part that arrives while they abort the upload.
                if let Some(part) = sending {
                    let _ = part.await;
                }
                if let Err(error) = upload.abort().await {
                    tracing::warn!("parts of an upload that was cut off stay in the store: {error}");
                }
            });
        }
    }
}

/// An object that arrives. One part is on its way while the next one fills.
pub(super) struct BucketUpload {
    store: Arc<AmazonS3>,
    url: BucketUrl,
    key: Path,
    piece: PutPayloadMut,
    parts: Parts,
    sent: usize,
    _turn: Option<OwnedSemaphorePermit>,
}

impl BucketUpload {
    fn fail(&self, error: Error) -> FileError {
        failed(&self.url, self.key.as_ref(), error)
    }

    pub(super) async fn write(&mut self, piece: &Bytes) -> Result<(), FileError> {
        let part_bytes = if self.sent < SMALL_PARTS { SMALL_PART_BYTES } else { LARGE_PART_BYTES };
        let mut rest = &piece[..];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(part_bytes - self.piece.content_length()));
            self.piece.extend_from_slice(now);
            rest = later;
            if self.piece.content_length() == part_bytes {
                self.send().await?;
            }
        }
        Ok(())
    }

    async fn send(&mut self) -> Result<(), FileError> {
        self.arrived().await?;
        if self.parts.upload.is_none() {
            let begun = self.store.put_multipart(&self.key).await;
            self.parts.upload = Some(begun.map_err(|error| self.fail(error))?);
        }
        let payload: PutPayload = std::mem::take(&mut self.piece).into();
        self.parts.sending = self.parts.upload.as_mut().map(|upload| tokio::spawn(upload.put_part(payload)));
        self.sent += 1;
        Ok(())
    }

    async fn arrived(&mut self) -> Result<(), FileError> {
        let Some(part) = self.parts.sending.as_mut() else { return Ok(()) };
        let sent = part.await.unwrap_or_else(|error| Err(error.into()));
        self.parts.sending = None;
        sent.map_err(|error| self.fail(error))
    }

    /// No client sees any of it before this.
    pub(super) async fn finish(mut self) -> Result<(), FileError> {
        if self.parts.upload.is_none() {
            let whole: PutPayload = std::mem::take(&mut self.piece).into();
            return self.store.put(&self.key, whole).await.map(drop).map_err(|error| self.fail(error));
        }
        if self.piece.content_length() > 0 {
            self.send().await?;
        }
        self.arrived().await?;
        if let Some(upload) = &mut self.parts.upload {
            let complete = upload.complete().await;
            complete.map_err(|error| self.fail(error))?;
            self.parts.upload = None;
        }
        Ok(())
    }
}

/// The store's answer, for the client; its original text is for the server's log.
fn failed(url: &BucketUrl, object: &str, error: Error) -> FileError {
    let store = url.to_string();
    match error {
        Error::NotFound { .. } => FileError::NoObject(object.to_owned()),
        error if is_refused(&error) => {
            tracing::error!(%url, "the file store refuses the server's keys: {error}");
            FileError::Refused { store }
        }
        error => {
            tracing::error!(%url, "the file store does not answer: {error}");
            FileError::Away { store }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let shown = |url| BucketUrl::parse(url).map(|url| url.to_string());
        assert_eq!(shown("s3://models").unwrap(), "s3://models");
        assert_eq!(shown("s3://models/").unwrap(), "s3://models");
        assert_eq!(shown("s3://team.models-1/a/b/").unwrap(), "s3://team.models-1/a/b");
        for bad in [
            "s3://",
            "s3:///x",
            "s3://Bad",
            "s3://a_b",
            "s3://ab",
            "s3://abc//x",
            "s3://abc/../x",
            "gs://abc",
        ] {
            assert_eq!(shown(bad), None, "{bad}");
        }
    }
}
