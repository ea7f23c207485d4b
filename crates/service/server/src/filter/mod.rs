//! The conditions of a `get_all` in ClearML's format. Each parameter is applied, or the request is refused with the
//! parameter's name. No parameter is ignored silently: programs delete what such a list names.

mod lists;
mod spec;
mod times;

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::{Map, Value};

pub(crate) use self::lists::Terms;
pub(crate) use self::spec::{MODELS, PROJECTS, QUEUES, Spec, TASKS};
pub(crate) use self::times::{Order, Times};
use crate::error::ApiError;
use crate::projection::pattern;

/// A condition on one field.
#[derive(Debug)]
pub(crate) enum Test {
    /// On the words in it.
    Terms(Terms),
    /// On the moment in it.
    Times(Times),
    /// From and to, both included; without `from` also where there is none.
    Range(Option<f64>, Option<f64>),
    /// It holds a match.
    Pattern(Regex),
    /// It is this.
    Is(Value),
}

/// One test for several fields.
#[derive(Debug)]
struct Several {
    fields: Vec<String>,
    test: Test,
    /// All of them must pass, not only one.
    all: bool,
}

/// All conditions of a request. They must all hold.
#[derive(Debug, Default)]
pub(crate) struct Filter {
    tests: BTreeMap<String, Vec<Test>>,
    several: Vec<Several>,
    /// One of these words must be in one of these fields.
    words: Option<(Regex, &'static [&'static str])>,
}

impl Filter {
    /// Takes the conditions out of a request. The caller must know the remaining parameters, see [`Spec::is_plain`].
    pub(crate) fn parse(spec: &Spec, body: &Map<String, Value>) -> Result<Self, ApiError> {
        let mut filter = Self::default();
        let by_field = match body.get("filters") {
            None => Map::new(),
            Some(Value::Object(filters)) => filters.clone(),
            Some(_) => return Err(ApiError::invalid("filters: an object of fields is needed")),
        };
        for (field, value) in &by_field {
            if !spec::is_one_of(field, spec.lists) {
                return Err(ApiError::invalid(format!(
                    "filters: {} is not a field for it",
                    field.escape_default()
                )));
            }
            filter.push(field, Test::Terms(Terms::from_filter(field, value)?));
        }
        for (field, value) in body {
            // ClearML's clients name in each body the method by which they would have sent it.
            let is_known = spec.is_plain(field) || field == "filters" || field == "method";
            if is_known || by_field.contains_key(field) {
                continue;
            }
            filter.add(spec, spec.field(field), value)?;
        }
        if !body.contains_key("id") && body.get("search_hidden") != Some(&Value::Bool(true)) && spec.hides {
            filter.push("system_tags", Test::Terms(Terms::without("hidden")));
        }
        Ok(filter)
    }

    fn add(&mut self, spec: &Spec, field: &str, value: &Value) -> Result<(), ApiError> {
        let wrong = |what: &str| ApiError::invalid(format!("{}: {what}", field.escape_default()));
        match field {
            "_any_" | "_or_" => return self.add_several(spec, field, value, false),
            "_all_" | "_and_" => return self.add_several(spec, field, value, true),
            "search_text" => {
                let text = value.as_str().ok_or_else(|| wrong("text is needed"))?;
                self.words = words(text)?.map(|regex| (regex, spec.text));
                return Ok(());
            }
            _ => {}
        }
        let test = if spec.patterns.contains(&field) {
            let text = value.as_str().ok_or_else(|| wrong("a pattern is needed"))?;
            match pattern(Some(text).filter(|text| !text.is_empty()))? {
                Some(regex) => Test::Pattern(regex),
                None => return Ok(()),
            }
        } else if spec::is_one_of(field, spec.lists) {
            Test::Terms(Terms::from_list(field, value)?)
        } else if spec.times.contains(&field) {
            Test::Times(Times::parse(field, value)?)
        } else if spec::is_one_of(field, spec.ranges) {
            range(field, value)?
        } else if spec::is_one_of(field, spec.exact) {
            Test::Is(value.clone())
        } else if *value == Value::Bool(false) && spec.switches.contains(&field) {
            // A switch that is off asks for nothing.
            return Ok(());
        } else {
            return Err(wrong("this server has no such parameter, and ignores none"));
        };
        self.push(field, test);
        Ok(())
    }

    fn add_several(&mut self, spec: &Spec, name: &str, value: &Value, all: bool) -> Result<(), ApiError> {
        let wrong = |what: &str| ApiError::invalid(format!("{name}: {what}"));
        let parts = value.as_object().ok_or_else(|| wrong("an object with fields and pattern is needed"))?;
        let fields: Option<Vec<String>> = match parts.get("fields").and_then(Value::as_array) {
            Some(fields) => fields.iter().map(|field| field.as_str().map(str::to_owned)).collect(),
            None => Some(Vec::new()),
        };
        let fields = fields.ok_or_else(|| wrong("fields is a list of names"))?;
        let test = match (parts.get("pattern").and_then(Value::as_str), parts.get("datetime")) {
            // A search box: upper and lower case are the same.
            (Some(text), None) => pattern(Some(&format!("(?i){text}")))?.map(Test::Pattern),
            (None, Some(times)) => Some(Test::Times(Times::parse(name, times)?)),
            _ => return Err(wrong("either pattern or datetime is needed")),
        };
        let known = |field: &String| spec.fields.contains(&field.split('.').next().unwrap_or(field));
        if let Some(unknown) = fields.iter().find(|field| !known(field)) {
            return Err(wrong(&format!("there is no field {}", unknown.escape_default())));
        }
        if let Some(test) = test.filter(|_| !fields.is_empty()) {
            self.several.push(Several { fields, test, all });
        }
        Ok(())
    }

    pub(crate) fn push(&mut self, field: &str, test: Test) {
        self.tests.entry(field.to_owned()).or_default().push(test);
    }

    /// Removes and returns the tests of a field, for a caller that can answer them faster.
    pub(crate) fn take(&mut self, field: &str) -> Vec<Test> {
        self.tests.remove(field).unwrap_or_default()
    }

    /// Nothing is left to be tested.
    pub(crate) fn is_empty(&self) -> bool {
        self.tests.is_empty() && self.several.is_empty() && self.words.is_none()
    }

    /// A test is about this field, or about one within it.
    pub(crate) fn mentions(&self, field: &str) -> bool {
        let within =
            |name: &str| name == field || name.strip_prefix(field).is_some_and(|rest| rest.starts_with('.'));
        self.tests.keys().any(|name| within(name))
            || self.several.iter().flat_map(|several| &several.fields).any(|name| within(name))
    }

    /// Whether ClearML's object meets the conditions.
    pub(crate) fn matches(&self, object: &Value) -> bool {
        self.tests.iter().all(|(field, tests)| {
            let values = at(object, field);
            tests.iter().all(|test| test.passes(&values))
        }) && self.several.iter().all(|several| {
            let passes = |field: &String| several.test.passes(&at(object, field));
            if several.all { several.fields.iter().all(passes) } else { several.fields.iter().any(passes) }
        }) && self.words.as_ref().is_none_or(|(words, fields)| {
            fields.iter().flat_map(|field| at(object, field)).any(|value| words.is_match(&text(value)))
        })
    }
}

impl Test {
    fn passes(&self, values: &[&Value]) -> bool {
        match self {
            Self::Terms(terms) => terms.accept(&values.iter().map(|value| text(value)).collect::<Vec<_>>()),
            Self::Times(times) => {
                times.accept(values.iter().filter_map(|value| value.as_str()).find_map(times::read))
            }
            Self::Range(from, to) => match values.iter().find_map(|value| value.as_f64()) {
                Some(value) => from.is_none_or(|from| value >= from) && to.is_none_or(|to| value <= to),
                None => from.is_none(),
            },
            Self::Pattern(regex) => values.iter().any(|value| regex.is_match(&text(value))),
            Self::Is(wanted) => values.contains(&wanted),
        }
    }
}

fn range(field: &str, value: &Value) -> Result<Test, ApiError> {
    let wrong = || {
        ApiError::invalid(format!("{}: a list of least and greatest value is needed", field.escape_default()))
    };
    let number = |value: &Value| match value {
        Value::Null => Ok(None),
        Value::String(text) => text.parse().map(Some).map_err(|_| wrong()),
        value => value.as_f64().map(Some).ok_or_else(wrong),
    };
    match value.as_array().map(Vec::as_slice) {
        Some([Value::Null, Value::Null]) | None => Err(wrong()),
        Some([from, to]) => Ok(Test::Range(number(from)?, number(to)?)),
        Some(_) => Err(wrong()),
    }
}

/// Any of the words of a text, as a whole word and in whatever case.
fn words(text: &str) -> Result<Option<Regex>, ApiError> {
    let words: Vec<String> = text.split_whitespace().map(regex::escape).collect();
    if words.is_empty() {
        return Ok(None);
    }
    pattern(Some(&format!("(?i)(?:^|\\W)(?:{})(?:\\W|$)", words.join("|"))))
}

/// The values at a dotted path, through lists as well. A dot within a name is written `%2E`, as ClearML's clients do.
fn at<'a>(object: &'a Value, path: &str) -> Vec<&'a Value> {
    let mut found = vec![object];
    for part in path.split('.') {
        let name = part.replace("%2E", ".").replace("%24", "$");
        let step = |value: &'a Value| match value {
            Value::Object(members) => members.get(&name).into_iter().collect(),
            Value::Array(items) => items.iter().filter_map(|item| item.get(&name)).collect::<Vec<_>>(),
            _ => Vec::new(),
        };
        found = found.into_iter().flat_map(step).collect();
    }
    let flat = |value: &'a Value| match value {
        Value::Null => Vec::new(),
        Value::Array(items) => items.iter().collect(),
        value => vec![value],
    };
    found.into_iter().flat_map(flat).collect()
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests;
