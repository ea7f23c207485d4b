//! Caches what was found in images. An image never changes under its id, and an engine takes ten milliseconds to answer
//! about one path. So each image is searched once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::copies::{DriverCopy, STEMS};
use crate::files::{self, Durability};

/// Images are replaced; a file that has this many starts again, empty.
const MOST: usize = 256;

/// By image and searched directories: paths, and which of [`STEMS`] each of them is.
type Entries = BTreeMap<String, Vec<(String, usize)>>;

/// The file with the results; without one every image is searched each time.
#[derive(Clone, Debug, Default)]
pub(super) struct Searched(pub(super) Option<PathBuf>);

impl Searched {
    fn entries(&self) -> Entries {
        let read = self.0.as_ref().and_then(|path| files::read_json(path).ok());
        read.flatten().unwrap_or_default()
    }

    /// The copies of `image` in `dirs`, if known.
    pub(super) fn known(&self, image: &str, dirs: &BTreeSet<String>) -> Option<BTreeSet<DriverCopy>> {
        let found = self.entries().remove(&key(image, dirs))?;
        let copy = |(path, stem): (String, usize)| Some(DriverCopy { path, stem: STEMS.get(stem)? });
        found.into_iter().map(copy).collect()
    }

    /// Keeps what was found. Of two processes that write at once one is searched again.
    pub(super) fn keep(&self, image: &str, dirs: &BTreeSet<String>, found: &BTreeSet<DriverCopy>) {
        let Some(path) = &self.0 else { return };
        let mut entries = self.entries();
        if entries.len() >= MOST {
            entries.clear();
        }
        let number = |stem| STEMS.iter().position(|known| *known == stem).unwrap_or_default();
        let found = found.iter().map(|copy| (copy.path.clone(), number(copy.stem))).collect();
        entries.insert(key(image, dirs), found);
        // Without it the image is searched again.
        let _ = files::write_json(path, &entries, Durability::Crash);
    }
}

fn key(image: &str, dirs: &BTreeSet<String>) -> String {
    let dirs: Vec<&str> = dirs.iter().map(String::as_str).collect();
    format!("{image} {}", dirs.join(":"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_known_by_its_id_and_by_where_was_searched() {
        let dir = tempfile::tempdir().unwrap();
        let searched = Searched(Some(dir.path().join("images.json")));
        let dirs = BTreeSet::from(["/a".to_owned()]);
        let found = BTreeSet::from([DriverCopy { path: "/a/libcuda.so.1".to_owned(), stem: STEMS[0] }]);
        assert_eq!(searched.known("sha256:1", &dirs), None);
        searched.keep("sha256:1", &dirs, &found);
        searched.keep("sha256:2", &dirs, &BTreeSet::new());
        assert_eq!(searched.known("sha256:1", &dirs), Some(found));
        assert_eq!(searched.known("sha256:2", &dirs), Some(BTreeSet::new()));
        assert_eq!(searched.known("sha256:1", &BTreeSet::new()), None);
    }
}
