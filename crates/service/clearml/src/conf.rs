//! Reads `clearml.conf`: the server's address, the keys for it, and the agent's settings.
//!
//! The file is HOCON as ClearML's own parser (pyhocon) reads it, which differs from the standard. Addresses in it have no
//! quotes although `//` begins a comment, so standard parsers refuse the files that `clearml-init` writes. This parser reads
//! what such files contain: nested and dotted keys, `:` or `=`, comments, lists, quoted text and text to the end of the
//! line, `${NAME}` and `${?NAME}`. `include` is refused.

mod parse;

use serde_json::Value;

/// The content of a `clearml.conf`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conf(Value);

/// A file that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct ConfError {
    /// Where.
    pub line: usize,
    /// The fault.
    pub what: String,
}

impl Conf {
    /// Reads the text of such a file. `env` gives the value of an environment variable, for `${NAME}`.
    ///
    /// # Errors
    /// Names the line and what is wrong with it.
    pub fn parse(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Self, ConfError> {
        parse::parse(text, env).map(Self)
    }

    /// The value at a dotted path, as text; `None` if it is not there, `null`, empty, or not one value.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<String> {
        scalar(self.at(path)?).filter(|text| !text.is_empty())
    }

    /// The number at a dotted path.
    #[must_use]
    pub fn number(&self, path: &str) -> Option<f64> {
        self.text(path)?.parse().ok()
    }

    /// The items of the list at a dotted path; one value counts as a list of one.
    #[must_use]
    pub fn list(&self, path: &str) -> Vec<String> {
        match self.at(path) {
            Some(Value::Array(items)) => items.iter().filter_map(scalar).collect(),
            _ => self.text(path).into_iter().collect(),
        }
    }

    fn at(&self, path: &str) -> Option<&Value> {
        path.split('.').try_fold(&self.0, |value, key| value.get(key))
    }
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &str) -> Option<String> {
        (name == "NAME").then(|| "box7".to_owned())
    }

    fn read(text: &str) -> Conf {
        Conf::parse(text, &env).unwrap()
    }

    #[test]
    fn as_clearml_init_writes_it() {
        let conf = read(
            r#"
# ClearML SDK configuration file
api {
    // Notice: 'host' is the api server (default port 8008), not the web server.
    api_server: http://127.0.0.1:8008   # here
    web_server: https://app.clear.ml/path
    files_server: "http://127.0.0.1:8081"
    credentials {"access_key" = "AAA", "secret_key" = "B+/==#x"}
}
agent.worker_name = ${NAME}
agent {
    worker_id: ""
    git_user=""
    extra_docker_arguments: ["--ipc=host", "-v", "/mnt:/mnt", ]
    venvs_dir = ~/.clearml/venvs-builds
    package_manager: {
        type: pip,
        pip_version: ["<20.2 ; python_version < '3.10'", "<22.3"]
    },
    abort_callback_max_timeout: 1800
    uptime: ["17-20 TUE"
             "9-12 MON"]
    reload_config: false,
    nothing: ${?NOT_SET}
    folder: "/a/"${NAME}/b
}
sdk { aws { s3 { credentials: [
    # { host: "my-minio-host:9000" }
] } } }
"#,
        );
        assert_eq!(conf.text("api.api_server").as_deref(), Some("http://127.0.0.1:8008"));
        assert_eq!(conf.text("api.web_server").as_deref(), Some("https://app.clear.ml/path"));
        assert_eq!(conf.text("api.credentials.secret_key").as_deref(), Some("B+/==#x"));
        assert_eq!(conf.text("agent.worker_name").as_deref(), Some("box7"));
        assert_eq!(conf.text("agent.worker_id"), None, "empty is not said");
        assert_eq!(conf.text("agent.nothing"), None);
        assert_eq!(conf.text("agent.venvs_dir").as_deref(), Some("~/.clearml/venvs-builds"));
        assert_eq!(conf.text("agent.folder").as_deref(), Some("/a/box7/b"));
        assert_eq!(conf.text("agent.reload_config").as_deref(), Some("false"));
        assert_eq!(conf.number("agent.abort_callback_max_timeout"), Some(1800.0));
        assert_eq!(conf.list("agent.extra_docker_arguments"), ["--ipc=host", "-v", "/mnt:/mnt"]);
        assert_eq!(conf.list("agent.uptime"), ["17-20 TUE", "9-12 MON"]);
        assert_eq!(conf.list("agent.package_manager.pip_version").len(), 2);
    }

    #[test]
    fn later_values_win_and_sections_grow_together() {
        let conf = read("{a {b: 1, c = two words}, a.b: 3\na { d += x, d += y }}");
        assert_eq!(
            (conf.text("a.b").as_deref(), conf.text("a.c").as_deref()),
            (Some("3"), Some("two words"))
        );
        assert_eq!(conf.list("a.d"), ["x", "y"]);
        let again = read(
            "base: /srv\npath: ${base}/x\ntext: \"\"\"raw \"q\" ${x}\"\"\"\nquoted: \"a\\n\\u0041\\\"\"",
        );
        assert_eq!(again.text("path").as_deref(), Some("/srv/x"));
        assert_eq!(again.text("text").as_deref(), Some("raw \"q\" ${x}"));
        assert_eq!(again.text("quoted").as_deref(), Some("a\nA\""));
        assert_eq!(read(""), read("# nothing\n"));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let wrong = |text: &str| Conf::parse(text, &env).unwrap_err().to_string();
        assert_eq!(wrong("api {\n a: 1\n"), "line 3: the section has no end; write }");
        assert_eq!(wrong("a: [1, 2"), "line 1: the list has no end; write ]");
        assert_eq!(wrong("a: \"b\nc: d"), "line 1: the quoted text has no end; write \"");
        assert_eq!(
            wrong("\n\na: ${NOT_SET}"),
            "line 3: ${NOT_SET} is neither set in this file nor in the environment"
        );
        assert_eq!(wrong("include \"other.conf\""), "line 1: include is not supported; put its content here");
        assert_eq!(wrong("a 1"), "line 1: \"a 1\" is followed by no value; write NAME: VALUE");
        assert!(wrong("a: 1\n}").starts_with("line 2: "));
        for text in ["{", "[", "a:{b", "a: ${", "a: \"\"\"x", "=", "a: \"\\u12\"", "a:]", "\"", "a.: 1"] {
            drop(Conf::parse(text, &env));
        }
    }
}
