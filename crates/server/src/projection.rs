//! What list endpoints share: selected fields, patterns of names, pages.

use cantle_clearml::{Listing, subcode};
use regex::Regex;
use serde_json::{Map, Value};

use crate::error::ApiError;

/// A record that list endpoints return.
pub(crate) trait Listed {
    fn id(&self) -> &str;
    fn name(&self) -> &str;
    /// ClearML's object.
    fn object(&self) -> Value;
}

/// The records that a request selects, with the fields that it selects.
pub(crate) fn list<T: Listed>(mut rows: Vec<T>, wanted: &Listing) -> Result<Vec<Value>, ApiError> {
    few(&wanted.id)?;
    let name = pattern(wanted.name.as_deref())?;
    rows.retain(|row| {
        let id = wanted.id.is_empty() || wanted.id.iter().any(|id| id == row.id());
        id && name.as_ref().is_none_or(|name| name.is_match(row.name()))
    });
    let rows = page(rows, wanted);
    Ok(rows.iter().map(|row| only(row.object(), &wanted.only_fields)).collect())
}

/// Limit of ids in one request: more are a mistake, and more than one SQL statement takes.
const MAX_IDS: usize = 10_000;

/// Keeps the named fields (dotted, `runtime.progress`) and the id; absent ones are left out. No names: everything.
pub(crate) fn only(object: Value, fields: &[String]) -> Value {
    if fields.is_empty() {
        return object;
    }
    let mut kept = Map::new();
    for field in std::iter::once("id").chain(fields.iter().map(String::as_str)) {
        copy_path(&object, field, &mut kept);
    }
    Value::Object(kept)
}

fn copy_path(from: &Value, path: &str, to: &mut Map<String, Value>) {
    let Some(members) = from.as_object() else {
        return;
    };
    if let Some(value) = members.get(path) {
        to.insert(path.to_owned(), value.clone());
        return;
    }
    let Some((first, rest)) = path.split_once('.') else {
        return;
    };
    let Some(inner) = members.get(first) else {
        return;
    };
    let mut below = to.get(first).and_then(Value::as_object).cloned().unwrap_or_default();
    copy_path(inner, rest, &mut below);
    if !below.is_empty() {
        to.insert(first.to_owned(), Value::Object(below));
    }
}

/// A client's pattern for names.
pub(crate) fn pattern(text: Option<&str>) -> Result<Option<Regex>, ApiError> {
    let Some(text) = text else {
        return Ok(None);
    };
    let compiled = regex::RegexBuilder::new(text).size_limit(1 << 20).build();
    compiled.map(Some).map_err(|_| {
        let message = format!("\"{}\" is not a regular expression", text.escape_default());
        ApiError::new(400, subcode::INVALID_REGEX, message)
    })
}

/// One page of a list, or all of it without a page number or size.
pub(crate) fn page<T>(items: Vec<T>, wanted: &Listing) -> Vec<T> {
    if wanted.page.is_none() && wanted.page_size.is_none() {
        return items;
    }
    let size = usize::try_from(wanted.page_size.unwrap_or(500)).unwrap_or(usize::MAX).clamp(1, 10_000);
    let skip = usize::try_from(wanted.page.unwrap_or(0)).unwrap_or(usize::MAX).saturating_mul(size);
    items.into_iter().skip(skip).take(size).collect()
}

/// A list of ids that is not too long.
pub(crate) fn few(ids: &[String]) -> Result<(), ApiError> {
    if ids.len() > MAX_IDS {
        return Err(ApiError::invalid(format!("{} ids in one request; at most {MAX_IDS}", ids.len())));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn dotted_fields() {
        let task = json!({"id": "1", "status": "queued", "runtime": {"a": 1, "b": 2}, "name": "n"});
        assert_eq!(only(task.clone(), &[]), task);
        let names = fields(&["status", "runtime.b", "runtime.absent", "absent.x", "name.x"]);
        assert_eq!(only(task, &names), json!({"id": "1", "status": "queued", "runtime": {"b": 2}}));
    }

    #[test]
    fn pages() {
        let all = || (0..7).collect::<Vec<_>>();
        let paged = |page, page_size| super::page(all(), &Listing { page, page_size, ..Listing::default() });
        assert_eq!(paged(None, None), all());
        assert_eq!(paged(Some(1), Some(3)), [3, 4, 5]);
        assert_eq!(paged(Some(u64::MAX), Some(u64::MAX)), [0; 0]);
    }

    #[test]
    fn patterns() {
        assert!(
            pattern(Some(r"^my\-job\ 1$")).unwrap().unwrap().is_match("my-job 1"),
            "as Python escapes it"
        );
        assert_eq!(pattern(Some("(")).unwrap_err().code, 400);
    }
}
