//! Names of objects, and the byte ranges that a client requests.

use std::ops::Range;
use std::path::{Component, Path};

use super::FileError;

/// The path of an object, made of names alone: it leads nowhere else, on a disk or in a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObjectName(String);

impl ObjectName {
    /// Paths that lead out of the store, or to names that the server uses itself, are refused.
    pub(super) fn parse(object: &str) -> Result<Self, FileError> {
        let relative = object.trim_start_matches('/');
        let path = Path::new(relative);
        if relative.is_empty() || relative.starts_with('.') || !is_plain(path) {
            return Err(FileError::BadName(object.to_owned()));
        }
        // As the file system reads it: `a//b/` is `a/b`.
        let parts: Vec<&str> = path.components().filter_map(|part| part.as_os_str().to_str()).collect();
        Ok(Self(parts.join("/")))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Made of names alone: it leads nowhere else.
pub(crate) fn is_plain(path: &Path) -> bool {
    path.components().all(|part| match part {
        Component::Normal(name) => !name.as_encoded_bytes().iter().any(u8::is_ascii_control),
        _ => false,
    })
}

/// The request of a `Range` header (RFC 9110, section 14.2): one range of bytes. Several ranges, other units and what cannot
/// be read mean the whole object, as the RFC allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RangeRequest {
    Whole,
    From(u64),
    Between(u64, u64),
    Last(u64),
}

impl RangeRequest {
    pub(super) fn parse(header: Option<&str>) -> Self {
        let number = |text: &str| text.trim().parse().ok();
        let range = header.and_then(|header| header.trim().strip_prefix("bytes="));
        match range.and_then(|range| range.split_once('-')).map(|(from, to)| (from.trim(), to.trim())) {
            Some(("", last)) => number(last).map_or(Self::Whole, Self::Last),
            Some((from, "")) => number(from).map_or(Self::Whole, Self::From),
            Some((from, to)) => match (number(from), number(to)) {
                (Some(from), Some(to)) if from <= to => Self::Between(from, to),
                _ => Self::Whole,
            },
            None => Self::Whole,
        }
    }

    /// The bytes of an object of this length; `None` for all of them.
    pub(super) fn of(self, length: u64) -> Result<Option<Range<u64>>, FileError> {
        let (from, to) = match self {
            Self::Whole => return Ok(None),
            Self::From(from) => (from, length),
            Self::Between(from, to) => (from, to.saturating_add(1).min(length)),
            Self::Last(count) => (length.saturating_sub(count), length),
        };
        if from < to { Ok(Some(from..to)) } else { Err(FileError::NotThere { length }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_stay_inside() {
        let name = |text| ObjectName::parse(text).map(|name| name.0);
        assert_eq!(name("P1/train.1/a b.json").unwrap(), "P1/train.1/a b.json");
        assert_eq!(name("/P1//x/").unwrap(), "P1/x");
        for bad in ["", "/", "..", "../x", "a/../../x", ".hidden", "a/./../..", "x\0y", "x\ny"] {
            assert!(name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn ranges() {
        let of = |header, length| RangeRequest::parse(Some(header)).of(length);
        assert_eq!(of("bytes=0-0", 10).unwrap(), Some(0..1));
        assert_eq!(of("bytes=2-", 10).unwrap(), Some(2..10));
        assert_eq!(of("bytes=2-99", 10).unwrap(), Some(2..10));
        assert_eq!(of("bytes=-3", 10).unwrap(), Some(7..10));
        assert_eq!(of("bytes=-99", 10).unwrap(), Some(0..10));
        for whole in ["bytes=a-b", "lines=1-2", "bytes=5-2", "bytes=1-2,4-5", "bytes=", "bytes=-"] {
            assert_eq!(of(whole, 10).unwrap(), None, "{whole}");
        }
        for beyond in ["bytes=10-", "bytes=10-11", "bytes=-0"] {
            assert!(matches!(of(beyond, 10), Err(FileError::NotThere { length: 10 })), "{beyond}");
        }
        assert!(of("bytes=0-", 0).is_err());
    }
}
