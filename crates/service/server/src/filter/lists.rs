//! ClearML's conditions on lists of words: any, all or none of them, combined by its operators.

use serde_json::{Map, Value};

use crate::error::ApiError;

/// The words that a field must have. An empty list of words is no condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Terms {
    /// The parts below; `or`: one of them is enough.
    pub(crate) or: bool,
    /// One of these.
    pub(crate) any: Vec<String>,
    /// All of these.
    pub(crate) all: Vec<String>,
    /// None of these.
    pub(crate) none: Vec<String>,
    /// Not all of these.
    not_all: Vec<String>,
    /// A field without any word passes: `Some(true)` as well as what passes otherwise.
    pub(crate) empty: bool,
    /// A second group of conditions, and whether one of both is enough.
    second: Option<Box<(Self, bool)>>,
    /// The field must have a word (`true`) or none (`false`), in addition to the other parts.
    has_words: Option<bool>,
}

impl Terms {
    /// One of these is needed.
    pub(crate) fn any_of(words: Vec<String>) -> Self {
        Self { any: words, ..Self::default() }
    }

    /// None of them may be this.
    pub(crate) fn without(word: &str) -> Self {
        Self { none: vec![word.to_owned()], ..Self::default() }
    }

    /// `["a", "b", "-c"]`, with the operators `__$and`, `__$or`, `__$not` and `__$nop` and with `null` for none at all.
    pub(crate) fn from_list(field: &str, value: &Value) -> Result<Self, ApiError> {
        let wrong = |what: String| ApiError::invalid(format!("{}: {what}", field.escape_default()));
        let one = std::slice::from_ref(value);
        let items = value.as_array().map_or(one, Vec::as_slice);
        let mut terms = Self::default();
        let (mut operator, mut all, mut not, mut legacy) = (None, false, false, true);
        for item in items {
            if item.is_null() {
                (terms.empty, not) = (true, false);
                continue;
            }
            let text = match item {
                Value::String(text) => text.clone(),
                Value::Bool(_) | Value::Number(_) => item.to_string(),
                _ => return Err(wrong("words are needed".to_owned())),
            };
            if text.starts_with("__$") {
                if not {
                    return Err(wrong("a word is needed after __$not".to_owned()));
                }
                match text.as_str() {
                    "__$nop" => (all, legacy) = (false, true),
                    "__$not" => not = true,
                    "__$and" | "__$all" | "__$or" | "__$any" => {
                        all = matches!(text.as_str(), "__$and" | "__$all");
                        operator.get_or_insert(all);
                        legacy = false;
                    }
                    other => return Err(wrong(format!("there is no operator {}", other.escape_default()))),
                }
                continue;
            }
            operator.get_or_insert(true);
            match text.strip_prefix('-').filter(|_| legacy && !not) {
                Some("") => return Err(wrong("a word is needed after -".to_owned())),
                Some(unwanted) => terms.none.push(unwanted.to_owned()),
                None if not => terms.none.push(text),
                None if all => terms.all.push(text),
                None => terms.any.push(text),
            }
            not = false;
        }
        if not {
            return Err(wrong("a word is needed after __$not".to_owned()));
        }
        terms.or = operator == Some(false);
        Ok(terms)
    }

    /// `{"any": {"include": […], "exclude": […]}, "all": {…}, "op": "and"}`.
    pub(crate) fn from_filter(field: &str, value: &Value) -> Result<Self, ApiError> {
        let wrong = |what: &str| ApiError::invalid(format!("filters: {}: {what}", field.escape_default()));
        let parts = value.as_object().ok_or_else(|| wrong("an object is needed"))?;
        if let Some(unknown) = parts.keys().find(|key| !matches!(key.as_str(), "any" | "all" | "op")) {
            return Err(wrong(&format!("there is no {}", unknown.escape_default())));
        }
        let or = match parts.get("op").map(Value::as_str) {
            None | Some(Some("and")) => false,
            Some(Some("or")) => true,
            Some(_) => return Err(wrong("op is \"and\" or \"or\"")),
        };
        let part = |name: &str| -> Result<Option<Parts>, ApiError> {
            let Some(part) = parts.get(name).filter(|part| !part.is_null()) else { return Ok(None) };
            let part = part.as_object().ok_or_else(|| wrong("include and exclude are needed"))?;
            Parts::read(part).map(Some).ok_or_else(|| wrong("include and exclude are lists of words"))
        };
        let any = part("any")?.map(|Parts { include, exclude, has_words }| Self {
            or: true,
            any: include,
            not_all: exclude,
            has_words,
            ..Self::default()
        });
        let all = part("all")?.map(|Parts { include, exclude, has_words }| Self {
            all: include,
            none: exclude,
            has_words,
            ..Self::default()
        });
        Ok(match (any, all) {
            (Some(any), Some(all)) => Self { second: Some(Box::new((all, or))), ..any },
            (any, all) => any.or(all).unwrap_or_default(),
        })
    }

    /// The words, if one of them is enough.
    pub(crate) fn plain(&self) -> Option<&[String]> {
        let only = Self { any: self.any.clone(), or: self.or, ..Self::default() };
        (*self == only && !self.any.is_empty()).then_some(&self.any)
    }

    /// It is made of any, all and none alone.
    pub(crate) fn is_simple(&self) -> bool {
        self.not_all.is_empty() && self.second.is_none() && self.has_words.is_none()
    }

    /// Whether these are the requested words.
    pub(crate) fn accept(&self, words: &[String]) -> bool {
        let has = |word: &String| words.contains(word);
        let parts = [
            (!self.any.is_empty()).then(|| self.any.iter().any(has)),
            (!self.all.is_empty()).then(|| self.all.iter().all(has)),
            (!self.none.is_empty()).then(|| !self.none.iter().any(has)),
            (!self.not_all.is_empty()).then(|| !self.not_all.iter().all(has)),
            self.has_words.map(|needed| words.is_empty() != needed),
        ];
        let mut said = parts.into_iter().flatten().peekable();
        let nothing_said = said.peek().is_none();
        let first = if nothing_said {
            !self.empty
        } else if self.or {
            said.any(|passes| passes)
        } else {
            said.all(|passes| passes)
        };
        let first = first || (self.empty && words.is_empty());
        match self.second.as_deref() {
            None => first,
            Some((second, true)) => first || second.accept(words),
            Some((second, false)) => first && second.accept(words),
        }
    }
}

/// One part of `filters`.
struct Parts {
    include: Vec<String>,
    exclude: Vec<String>,
    has_words: Option<bool>,
}

impl Parts {
    fn read(part: &Map<String, Value>) -> Option<Self> {
        let mut has_words = None;
        let mut list = |name: &str, null_means: bool| -> Option<Vec<String>> {
            let Some(items) = part.get(name) else { return Some(Vec::new()) };
            let mut words = Vec::new();
            for item in items.as_array()? {
                match item {
                    Value::Null => has_words = Some(null_means),
                    Value::String(word) => words.push(word.clone()),
                    other => words.push(other.to_string()),
                }
            }
            Some(words)
        };
        let (include, exclude) = (list("include", false)?, list("exclude", true)?);
        let known = part.keys().all(|key| matches!(key.as_str(), "include" | "exclude"));
        known.then_some(Self { include, exclude, has_words })
    }
}
