//! The parser: from text to values, in one pass.

use serde_json::{Map, Number, Value};

use super::ConfError;

type Result<T> = std::result::Result<T, ConfError>;

/// Limit of nesting, deeper than any person writes: a file must not exhaust the stack.
const DEPTH_MAX: usize = 64;

pub(super) fn parse(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Value> {
    let mut parser = Parser { rest: text, text, env, root: Map::new(), depth: 0 };
    parser.skip_blank();
    let braced = parser.eat("{");
    parser.fields(&mut Vec::new(), braced)?;
    parser.skip_blank();
    if !parser.rest.is_empty() {
        return Err(parser.error("something follows the end; remove it, or a } too many before it"));
    }
    Ok(Value::Object(parser.root))
}

struct Parser<'a> {
    rest: &'a str,
    text: &'a str,
    env: &'a dyn Fn(&str) -> Option<String>,
    /// The values that were read so far; `${path}` refers to them.
    root: Map<String, Value>,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn error(&self, what: impl Into<String>) -> ConfError {
        let read = self.text.len() - self.rest.len();
        let line = 1 + self.text[..read].matches('\n').count();
        ConfError { line, what: what.into() }
    }

    fn eat(&mut self, token: &str) -> bool {
        let found = self.rest.strip_prefix(token);
        self.rest = found.unwrap_or(self.rest);
        found.is_some()
    }

    /// Passes blanks, line ends, comments and commas.
    fn skip_blank(&mut self) {
        loop {
            self.rest = self.rest.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
            if !self.rest.starts_with('#') && !self.rest.starts_with("//") {
                return;
            }
            self.skip_line();
        }
    }

    fn skip_line(&mut self) {
        self.rest = self.rest.find('\n').map_or("", |end| &self.rest[end..]);
    }

    fn skip_spaces(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\r']);
    }

    fn deeper(&mut self) -> Result<()> {
        self.depth += 1;
        if self.depth > DEPTH_MAX { Err(self.error("it is nested too deeply")) } else { Ok(()) }
    }

    /// The fields of the section at `path`, to its end.
    fn fields(&mut self, path: &mut Vec<String>, braced: bool) -> Result<()> {
        self.deeper()?;
        loop {
            self.skip_blank();
            if self.rest.is_empty() {
                let complete =
                    if braced { Err(self.error("the section has no end; write }")) } else { Ok(()) };
                self.depth -= 1;
                return complete;
            }
            if braced && self.eat("}") {
                self.depth -= 1;
                return Ok(());
            }
            self.field(path)?;
        }
    }

    fn field(&mut self, path: &mut Vec<String>) -> Result<()> {
        let depth = path.len();
        path.extend(self.key()?);
        self.skip_spaces();
        let appends = self.eat("+=");
        if !appends && !self.eat(":") && !self.eat("=") && !self.rest.starts_with('{') {
            let name = path[depth..].join(".");
            return Err(self.error(format!("\"{name}\" is followed by no value; write NAME: VALUE")));
        }
        self.skip_blank();
        if !appends && self.eat("{") {
            // A section adds to what is there already; anything else replaces it.
            entry(&mut self.root, path, |value| {
                if !value.is_object() {
                    *value = Value::Object(Map::new());
                }
            });
            self.fields(path, true)?;
        } else if let Some(value) = self.value()? {
            entry(&mut self.root, path, |old| match old {
                Value::Array(items) if appends => items.push(value),
                old if appends => *old = Value::Array(vec![value]),
                old => *old = value,
            });
        }
        path.truncate(depth);
        Ok(())
    }

    /// A key, at its dots.
    fn key(&mut self) -> Result<Vec<String>> {
        let mut parts = vec![String::new()];
        loop {
            if self.rest.starts_with('"') {
                let text = self.quoted()?;
                parts.iter_mut().last().into_iter().for_each(|part| part.push_str(&text));
                continue;
            }
            let Some(next) = self.rest.chars().next() else { break };
            match next {
                ':' | '=' | '{' | '+' | '\n' | '}' | '[' | ']' | ',' | '#' => break,
                '.' => parts.push(String::new()),
                next => parts.iter_mut().last().into_iter().for_each(|part| part.push(next)),
            }
            self.rest = &self.rest[next.len_utf8()..];
        }
        let parts: Vec<String> = parts.into_iter().map(|part| part.trim().to_owned()).collect();
        if parts[0] == "include" || parts[0].starts_with("include ") {
            return Err(self.error("include is not supported; put its content here"));
        }
        if parts.iter().any(String::is_empty) {
            return Err(self.error("a name is missing here; write NAME: VALUE"));
        }
        Ok(parts)
    }

    /// One value; `None` for `${?NAME}` that is not set.
    fn value(&mut self) -> Result<Option<Value>> {
        if self.eat("[") {
            return self.items().map(Some);
        }
        if self.eat("{") {
            return self.section().map(Some);
        }
        self.scalar()
    }

    fn items(&mut self) -> Result<Value> {
        self.deeper()?;
        let mut items = Vec::new();
        loop {
            self.skip_blank();
            if self.rest.is_empty() {
                return Err(self.error("the list has no end; write ]"));
            }
            if self.eat("]") {
                self.depth -= 1;
                return Ok(Value::Array(items));
            }
            items.extend(self.value()?);
        }
    }

    /// A section inside a list: a separate object, which can refer to the same names.
    fn section(&mut self) -> Result<Value> {
        let outer = std::mem::take(&mut self.root);
        let read = self.fields(&mut Vec::new(), true);
        let inner = std::mem::replace(&mut self.root, outer);
        read.map(|()| Value::Object(inner))
    }

    /// Pieces of text, quoted or not, and `${NAME}`s, up to the end of the value.
    fn scalar(&mut self) -> Result<Option<Value>> {
        let (mut text, mut plain, mut given) = (String::new(), true, false);
        loop {
            if self.rest.starts_with("${") {
                let (value, alone) = (self.substitution()?, !given);
                given |= value.is_some();
                match value {
                    Some(Value::String(value)) => text.push_str(&value),
                    Some(value) if alone && self.ends() => return Ok(Some(value)),
                    Some(value) => text.push_str(&super::scalar(&value).unwrap_or_default()),
                    None => {}
                }
                plain = false;
            } else if self.rest.starts_with('"') {
                text.push_str(&self.quoted()?);
                (plain, given) = (false, true);
            } else if self.ends() {
                break;
            } else {
                text.push_str(self.unquoted());
                given = true;
            }
        }
        if !given {
            // An empty value is null; a `${?NAME}` that is not set leaves what was there.
            return Ok(plain.then_some(Value::Null));
        }
        Ok(Some(if plain { plain_value(text.trim()) } else { Value::String(text.trim_end().to_owned()) }))
    }

    /// Is the value over, except for blanks before a comment?
    fn ends(&self) -> bool {
        let rest = self.rest.trim_start_matches([' ', '\t', '\r']);
        rest.is_empty()
            || rest.starts_with(['\n', ',', ']', '}', '#'])
            || (rest != self.rest && rest.starts_with("//"))
    }

    /// Text up to what ends it. `//` is a comment only behind a blank: addresses have it too.
    fn unquoted(&mut self) -> &'a str {
        let mut blank = false;
        let is_end = |(at, c): &(usize, char)| {
            let end = matches!(c, '\n' | ',' | ']' | '}' | '{' | '[' | '#' | '"')
                || self.rest[*at..].starts_with("${")
                || (blank && self.rest[*at..].starts_with("//"));
            blank = *c == ' ' || *c == '\t';
            end && *at > 0
        };
        let end = self.rest.char_indices().find(is_end).map_or(self.rest.len(), |(at, _)| at);
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest;
        text
    }

    fn quoted(&mut self) -> Result<String> {
        if let Some(inner) = self.rest.strip_prefix("\"\"\"") {
            let end = inner.find("\"\"\"");
            let end = end.ok_or_else(|| self.error("the quoted text has no end; write \"\"\""))?;
            self.rest = &inner[end + 3..];
            return Ok(inner[..end].to_owned());
        }
        let mut escaped = false;
        let is_end = |(_, c): &(usize, char)| {
            let end = (*c == '"' && !escaped) || *c == '\n';
            escaped = *c == '\\' && !escaped;
            end
        };
        let end = self.rest.char_indices().skip(1).find(is_end).filter(|(_, c)| *c == '"');
        let (end, _) = end.ok_or_else(|| self.error("the quoted text has no end; write \""))?;
        let (text, rest) = self.rest.split_at(end + 1);
        // Within one line the rules are JSON's.
        let read =
            serde_json::from_str(text).map_err(|_| self.error(format!("{text} is not proper text")))?;
        self.rest = rest;
        Ok(read)
    }

    /// `${path}` or `${?path}`: an earlier value of this file, or an environment variable.
    fn substitution(&mut self) -> Result<Option<Value>> {
        let inner = self.rest.trim_start_matches("${");
        let end = inner.find(['}', '\n']).filter(|end| inner[*end..].starts_with('}'));
        let end = end.ok_or_else(|| self.error("${ has no end; write }"))?;
        let (optional, name) = match inner[..end].strip_prefix('?') {
            Some(name) => (true, name.trim()),
            None => (false, inner[..end].trim()),
        };
        let said = name.split('.').try_fold(None::<&Value>, |at, key| {
            at.map_or_else(|| self.root.get(key), |value| value.get(key)).map(Some)
        });
        let found = said.flatten().cloned().or_else(|| (self.env)(name).map(Value::String));
        if found.is_none() && !optional {
            return Err(self.error(format!("${{{name}}} is neither set in this file nor in the environment")));
        }
        self.rest = &inner[end + 1..];
        Ok(found)
    }
}

/// Text without quotes may be more than text.
fn plain_value(text: &str) -> Value {
    match text {
        "true" | "yes" | "on" => Value::Bool(true),
        "false" | "no" | "off" => Value::Bool(false),
        "null" | "None" => Value::Null,
        // Only what reads the same as a number is one: 007 and 1.10 are text.
        text => match text.parse::<Number>() {
            Ok(number) if number.to_string() == text => Value::Number(number),
            _ => Value::String(text.to_owned()),
        },
    }
}

/// Changes the value at `path`, which is made if it is not there.
fn entry(root: &mut Map<String, Value>, path: &[String], change: impl FnOnce(&mut Value)) {
    let Some((last, sections)) = path.split_last() else { return };
    let mut at = root;
    for key in sections {
        let value = at.entry(key.clone()).or_insert(Value::Null);
        if !value.is_object() {
            *value = Value::Object(Map::new());
        }
        let Value::Object(inner) = value else { return };
        at = inner;
    }
    change(at.entry(last.clone()).or_insert(Value::Null));
}
