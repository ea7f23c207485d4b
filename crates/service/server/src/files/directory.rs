//! Objects as plain files of a directory.

use std::io;
use std::path::{Path, PathBuf};

use axum::body::{Body, Bytes};
use futures_util::stream::try_unfold;
use tokio::fs::{self, File};
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _};

use super::name::{ObjectName, RangeRequest};
use super::{FileError, StoredObject};
use crate::clock::new_id;

const PIECE_BYTES: usize = 256 << 10;

#[derive(Debug)]
pub(super) struct Directory(PathBuf);

impl Directory {
    /// Its path.
    pub(super) fn root(&self) -> &Path {
        &self.0
    }

    /// Removes what uploads left that were cut off by the end of the last server.
    pub(super) fn open(dir: PathBuf) -> Self {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().filter_map(Result::ok) {
            if entry.file_name().as_encoded_bytes().first() == Some(&b'.') {
                // One that stays does no harm: no object can have its name.
                let _ = std::fs::remove_file(entry.path());
            }
        }
        Self(dir)
    }

    fn path(&self, name: &ObjectName) -> PathBuf {
        self.0.join(name.as_str())
    }

    pub(super) async fn begin(&self, name: &ObjectName) -> Result<FileUpload, FileError> {
        let target = self.path(name);
        fs::create_dir_all(target.parent().unwrap_or(&self.0)).await?;
        // Under another name first, which no object can have: half an object must not be fetched.
        let partial = Partial(self.0.join(format!(".{}", new_id())));
        let file = File::create(&partial.0).await?;
        Ok(FileUpload { file, partial, target })
    }

    pub(super) async fn find(
        &self,
        name: &ObjectName,
        wanted: RangeRequest,
        head: bool,
    ) -> Result<StoredObject, FileError> {
        let mut file = File::open(self.path(name)).await?;
        let about = file.metadata().await?;
        if !about.is_file() {
            return Err(FileError::NoObject(name.as_str().to_owned()));
        }
        let (length, part) = (about.len(), wanted.of(about.len())?);
        if head {
            return Ok(StoredObject { length, part, body: Body::empty() });
        }
        let bytes = part.clone().unwrap_or(0..length);
        file.seek(io::SeekFrom::Start(bytes.start)).await?;
        // Piece by piece: objects may be larger than memory.
        let pieces = try_unfold(file.take(bytes.end - bytes.start), async |mut file| {
            let mut piece = vec![0; PIECE_BYTES];
            let length = file.read(&mut piece).await?;
            piece.truncate(length);
            Ok::<_, io::Error>((length > 0).then_some((piece, file)))
        });
        Ok(StoredObject { length, part, body: Body::from_stream(pieces) })
    }

    /// Deletes an object, and the directories that are empty without it.
    pub(super) async fn delete(&self, name: &ObjectName) -> Result<(), FileError> {
        let path = self.path(name);
        fs::remove_file(&path).await?;
        let parents = path.ancestors().skip(1).take_while(|parent| *parent != self.0);
        for parent in parents {
            // The first one that is not empty ends it.
            if fs::remove_dir(parent).await.is_err() {
                break;
            }
        }
        Ok(())
    }
}

/// A file that is removed unless it is given its name.
#[derive(Debug)]
struct Partial(PathBuf);

impl Drop for Partial {
    fn drop(&mut self) {
        // After the renaming there is none.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// An object that arrives; dropped before [`FileUpload::finish`], nothing of it stays.
#[derive(Debug)]
pub(super) struct FileUpload {
    file: File,
    partial: Partial,
    target: PathBuf,
}

impl FileUpload {
    pub(super) async fn write(&mut self, piece: &Bytes) -> Result<(), FileError> {
        Ok(self.file.write_all(piece).await?)
    }

    pub(super) async fn finish(self) -> Result<(), FileError> {
        self.file.sync_all().await?;
        let done = fs::rename(&self.partial.0, &self.target).await;
        match done {
            // Another call deleted the last object of the directory meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(self.target.parent().unwrap_or(&self.target)).await?;
                Ok(fs::rename(&self.partial.0, &self.target).await?)
            }
            done => Ok(done?),
        }
    }
}
