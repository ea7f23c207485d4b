//! The parts that list endpoints share: selected fields, patterns of names, pages.

use cantle_clearml::subcode;
use regex::Regex;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::filter::{Filter, Spec};

/// A record that list endpoints return.
pub(crate) trait Listed {
    /// ClearML's object.
    fn object(&self) -> Value;
}

/// ClearML's limit of the objects in one answer.
const PAGE: u64 = 500;

/// The page of a list, its fields, and its order.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Paging {
    #[serde(deserialize_with = "one_or_many")]
    pub(crate) only_fields: Vec<String>,
    #[serde(deserialize_with = "one_or_many")]
    pub(crate) order_by: Vec<String>,
    page: Option<u64>,
    page_size: Option<u64>,
    scroll_id: Option<String>,
    refresh_scroll: bool,
    size: Option<u64>,
}

/// A part of a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) skip: u64,
    pub(crate) take: u64,
}

impl Paging {
    pub(crate) fn read(body: &Map<String, Value>) -> Result<Self, ApiError> {
        serde_json::from_value(Value::Object(body.clone())).map_err(ApiError::unreadable)
    }

    /// The size of the answer: all without a page (or with ids, which are a limit themselves), else ClearML's limit.
    pub(crate) fn window(&self, all: bool) -> Result<Window, ApiError> {
        if let Some(position) = &self.scroll_id {
            let size = self.size.filter(|size| *size > 0);
            let size = size.ok_or_else(|| ApiError::invalid("size: a scroll_id needs one, 1 or more"))?;
            let position = if position.is_empty() { Ok(0) } else { position.parse() };
            let position: u64 = position.map_err(|_| ApiError::invalid("scroll_id is none of ours"))?;
            return Ok(match self.refresh_scroll {
                true => Window { skip: 0, take: size.max(position) },
                false => Window { skip: position, take: size },
            });
        }
        if self.page_size == Some(0) {
            return Err(ApiError::invalid("page_size: 1 or more"));
        }
        if all && self.page.is_none() && self.page_size.is_none() {
            return Ok(Window { skip: 0, take: i64::MAX.unsigned_abs() });
        }
        let size = self.page_size.unwrap_or(PAGE).min(PAGE);
        Ok(Window { skip: self.page.unwrap_or(0).saturating_mul(size), take: size })
    }

    /// The answer: the objects under their name, and how to continue.
    pub(crate) fn answer(&self, name: &str, window: Window, objects: Vec<Value>) -> Value {
        let mut answer = Map::new();
        if self.scroll_id.is_some() {
            let next = window.skip + u64::try_from(objects.len()).unwrap_or(0);
            answer.insert("scroll_id".to_owned(), Value::from(next.to_string()));
        }
        answer.insert(name.to_owned(), Value::Array(objects));
        Value::Object(answer)
    }
}

/// The records that a request asks for, in its order, one page of them, with the fields that it names.
pub(crate) fn list<T: Listed>(
    rows: &[T],
    spec: &Spec,
    body: &Map<String, Value>,
    name: &str,
) -> Result<Value, ApiError> {
    let filter = Filter::parse(spec, body)?;
    page(rows.iter().map(Listed::object).filter(|object| filter.matches(object)).collect(), spec, body, name)
}

/// The same of the objects that meet the request's conditions.
pub(crate) fn page(
    mut objects: Vec<Value>,
    spec: &Spec,
    body: &Map<String, Value>,
    name: &str,
) -> Result<Value, ApiError> {
    let paging = Paging::read(body)?;
    let window = paging.window(true)?;
    for field in paging.order_by.iter().rev() {
        let (field, down) = field.strip_prefix('-').map_or((field.as_str(), false), |field| (field, true));
        if !spec.fields.contains(&field.split('.').next().unwrap_or(field)) {
            return Err(ApiError::invalid(format!("order_by: there is no field {}", field.escape_default())));
        }
        let key = |object: &Value| {
            object.pointer(&format!("/{}", field.replace('.', "/"))).map(ToString::to_string)
        };
        objects.sort_by(|a, b| if down { key(b).cmp(&key(a)) } else { key(a).cmp(&key(b)) });
    }
    let (skip, take) = (usize::try_from(window.skip), usize::try_from(window.take));
    let page = objects.into_iter().skip(skip.unwrap_or(usize::MAX)).take(take.unwrap_or(usize::MAX));
    let page = page.map(|object| only(object, &paging.only_fields)).collect();
    Ok(paging.answer(name, window, page))
}

/// A list of words, or one word.
fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Words {
        Many(Vec<String>),
        One(String),
    }
    Ok(match Words::deserialize(deserializer)? {
        Words::Many(words) => words,
        Words::One(word) => vec![word],
    })
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
    if let Value::Array(items) = inner {
        // A field within a list: that field of each item.
        let of_item = |item: &Value| {
            let mut below = Map::new();
            copy_path(item, rest, &mut below);
            Value::Object(below)
        };
        to.entry(first).or_insert_with(|| items.iter().map(of_item).collect());
        return;
    }
    if !inner.is_object() {
        return;
    }
    // A requested field that does not exist leaves an empty object, as in ClearML's answers: its clients look into it.
    let mut below = to.get(first).and_then(Value::as_object).cloned().unwrap_or_default();
    copy_path(inner, rest, &mut below);
    to.insert(first.to_owned(), Value::Object(below));
}

/// Limit of a regular expression, as text and compiled: the time of a search grows with it.
const PATTERN_BYTES: usize = 16 << 10;
const COMPILED_BYTES: usize = 512 << 10;

/// A client's pattern for names.
pub(crate) fn pattern(text: Option<&str>) -> Result<Option<Regex>, ApiError> {
    let Some(text) = text else {
        return Ok(None);
    };
    let refused = |message| ApiError::new(400, subcode::INVALID_REGEX, message);
    if text.len() > PATTERN_BYTES {
        let message = format!("a regular expression of {} bytes; at most {PATTERN_BYTES}", text.len());
        return Err(refused(message));
    }
    regex::RegexBuilder::new(text).size_limit(COMPILED_BYTES).build().map(Some).map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => refused(format!(
            "\"{}\" is too large a regular expression: write fewer repetitions ({{N}}) and classes (\\w)",
            text.escape_default()
        )),
        _ => refused(format!("\"{}\" is not a regular expression", text.escape_default())),
    })
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
        let none = only(json!({"id": "1", "runtime": {}}), &fields(&["runtime.version"]));
        assert_eq!(none, json!({"id": "1", "runtime": {}}), "clients look into it");
    }

    #[test]
    fn windows() {
        let window = |paging: Value| {
            let paging = Paging::read(paging.as_object().unwrap()).unwrap();
            paging.window(false).map(|window| (window.skip, window.take)).map_err(|error| error.code)
        };
        assert_eq!(window(json!({})), Ok((0, 500)));
        assert_eq!(window(json!({"page": 2, "page_size": 3})), Ok((6, 3)));
        assert_eq!(window(json!({"page": 1, "page_size": 10_000})), Ok((500, 500)), "ClearML's limit");
        assert_eq!(window(json!({"page_size": 0})), Err(400));
        assert_eq!(window(json!({"scroll_id": "", "size": 7})), Ok((0, 7)));
        assert_eq!(window(json!({"scroll_id": "14", "size": 7})), Ok((14, 7)));
        assert_eq!(window(json!({"scroll_id": "14", "size": 7, "refresh_scroll": true})), Ok((0, 14)));
        assert_eq!(window(json!({"scroll_id": "x", "size": 7})), Err(400));
        assert_eq!(window(json!({"scroll_id": "7"})), Err(400));
    }

    #[test]
    fn patterns() {
        assert!(
            pattern(Some(r"^my\-job\ 1$")).unwrap().unwrap().is_match("my-job 1"),
            "as Python escapes it"
        );
        assert_eq!(pattern(Some("(")).unwrap_err().code, 400);
        for large in [r"(\w{50}){50}".to_owned(), "x".repeat(PATTERN_BYTES + 1)] {
            let refused = pattern(Some(&large)).unwrap_err();
            assert!(refused.code == 400 && refused.message.len() < 200, "{}", refused.message);
        }
        let names: Vec<String> = (0..300).map(|n| format!("experiment-{n}")).collect();
        assert!(pattern(Some(&format!("^({})$", names.join("|")))).is_ok(), "as the SDK lists names");
    }
}
