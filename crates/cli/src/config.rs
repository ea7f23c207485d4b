//! `--config FILE`: options of a command from a TOML file, for services. A table has a command's name, and its keys are the
//! names of the command's long options. Keys above the tables are options of every command. The command line and the
//! environment have precedence.
//!
//! The file is converted to words of the command line, so that each option is checked in one place and means the same
//! in both.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use toml::Value;

use crate::error::{CliError, ErrorKind};
use crate::shared_args::CONSENT;

/// The option that names the file, `--config` before the command. `cantle controller queues` has an option of that name for itself.
const OPTION: &str = "options_file";
/// The variable that names it too.
pub(crate) const VARIABLE: &str = "CANTLE_CONFIG";
/// The table that is no command's: its keys and values are the pairs of this option of `daemon` and `up`.
const TASK_USERS: (&str, &str) = ("task_users", "task-users");
/// Options that no file has: they ask for something other than a run.
const NOT_IN_A_FILE: [&str; 7] = ["config", "help", "version", "stop", "status", "detached", "foreground"];

/// `words` with the options of the file that they name, if they name one.
pub(crate) fn with_file(
    words: Vec<OsString>,
    command_line: fn() -> Command,
) -> Result<Vec<OsString>, CliError> {
    if !may_name_a_file(&words) {
        return Ok(words);
    }
    let mut root = command_line();
    root.build();
    // Missing options may be in the file.
    let Ok(given) = root.clone().ignore_errors(true).try_get_matches_from(&words) else { return Ok(words) };
    let file = given.try_get_one::<PathBuf>(OPTION).ok().flatten().cloned();
    let (Some(file), Some((name, options))) = (file, given.subcommand()) else { return Ok(words) };
    let Some(command) = root.find_subcommand(name) else { return Ok(words) };
    let added = File::read(&file)?.words(&root, command, options)?;
    let at = after_name(&words, &root, command);
    let (before, after) = words.split_at(at);
    Ok([before, &added, after].concat())
}

/// The command line is read twice only then.
fn may_name_a_file(words: &[OsString]) -> bool {
    words.iter().any(|word| word.to_string_lossy().starts_with("--config"))
        || std::env::var_os(VARIABLE).is_some()
}

/// Where the options of `command` begin: behind its name, which may also be the value of an option before it.
fn after_name(words: &[OsString], root: &Command, command: &Command) -> usize {
    let takes_value = |word: &OsString| {
        let word = word.to_string_lossy();
        let named = root.get_arguments().find(|option| match word.strip_prefix("--") {
            Some(long) => option.get_long() == Some(long),
            None => word.strip_prefix('-').is_some_and(|short| option.get_short() == short.parse().ok()),
        });
        named.is_some_and(|option| option.get_action().takes_values())
    };
    let is_name = |at: &usize| {
        let named = words.get(*at).and_then(|word| root.find_subcommand(word));
        named.is_some_and(|named| named.get_name() == command.get_name()) && !takes_value(&words[at - 1])
    };
    (1..words.len()).find(is_name).map_or(words.len(), |at| at + 1)
}

/// A file with options.
struct File<'a> {
    path: &'a Path,
    options: toml::Table,
}

impl<'a> File<'a> {
    fn read(path: &'a Path) -> Result<Self, CliError> {
        let usage =
            |why: String| CliError::new(ErrorKind::Usage, format!("--config {}: {why}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| usage(error.to_string()))?;
        let options = text.parse::<toml::Table>().map_err(|error| {
            let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
            usage(format!("line {line}: {}", error.message()))
        })?;
        Ok(Self { path, options })
    }

    /// The words for `command` that `given` does not contain already.
    fn words(
        &self,
        root: &Command,
        command: &Command,
        given: &ArgMatches,
    ) -> Result<Vec<OsString>, CliError> {
        let mut words = Vec::new();
        for (key, value) in &self.options {
            match value {
                Value::Table(table) if key == TASK_USERS.0 => {
                    words.extend(self.pairs(command, table, given)?);
                }
                Value::Table(table) => {
                    let named = root.find_subcommand(key).ok_or_else(|| self.unknown(key, "command"))?;
                    for (key, value) in table {
                        let option = self.option(named, key)?;
                        if named.get_name() == command.get_name() {
                            words.extend(self.spell(option, key, value, given)?);
                        }
                    }
                }
                _ => words.extend(self.spell(self.option(root, key)?, key, value, given)?),
            }
        }
        Ok(words)
    }

    /// The words for the option that takes pairs, if the command has it.
    fn pairs(
        &self,
        command: &Command,
        table: &toml::Table,
        given: &ArgMatches,
    ) -> Result<Vec<OsString>, CliError> {
        let (name, key) = TASK_USERS;
        let Some(option) = command.get_arguments().find(|option| option.get_long() == Some(key)) else {
            return Ok(Vec::new());
        };
        let pair = |(left, right): (&String, &Value)| match right {
            Value::String(right) => Ok(Value::from(format!("{left}={right}"))),
            _ => Err(self.usage(format!("[{name}] {left} = {right}: must be a text"))),
        };
        let pairs = table.iter().map(pair).collect::<Result<Vec<_>, _>>()?;
        self.spell(option, key, &Value::Array(pairs), given)
    }

    fn option<'c>(&self, command: &'c Command, key: &str) -> Result<&'c Arg, CliError> {
        let is_named = |option: &&Arg| {
            option.get_long() == Some(key) || option.get_all_aliases().is_some_and(|all| all.contains(&key))
        };
        let found = command.get_arguments().find(is_named).filter(|_| !NOT_IN_A_FILE.contains(&key));
        found.ok_or_else(|| {
            let what = format!("option of cantle {}", command.get_name());
            let known = command.get_arguments().filter_map(Arg::get_long);
            let nearest = known.min_by_key(|known| strsim::damerau_levenshtein(known, key));
            let error = self.unknown(key, &what);
            match nearest.filter(|near| strsim::damerau_levenshtein(near, key) <= 2) {
                Some(near) => error.with_hint(format!("did you mean {near}?")),
                None => error.with_hint(format!(
                    "keys are long options without the dashes: cantle {} --help",
                    command.get_name()
                )),
            }
        })
    }

    /// The words for one option; none if the command line or the environment has it.
    fn spell(
        &self,
        option: &Arg,
        key: &str,
        value: &Value,
        given: &ArgMatches,
    ) -> Result<Vec<OsString>, CliError> {
        let source = given.value_source(option.get_id().as_str());
        if matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable)) {
            return Ok(Vec::new());
        }
        let is_consent = option.get_long() == Some(CONSENT);
        let takes_value = !is_consent && matches!(option.get_action(), ArgAction::Set | ArgAction::Append);
        let texts = match (value, takes_value) {
            // Whose word it is counts: the file is read again where it does.
            (Value::Boolean(true), _) if is_consent => {
                let path = std::path::absolute(self.path).map_err(|error| self.usage(error.to_string()))?;
                return Ok(vec![format!("--{key}={}", path.display()).into()]);
            }
            (Value::Boolean(wanted), false) => {
                return Ok(wanted.then(|| format!("--{key}").into()).into_iter().collect());
            }
            (Value::Array(values), true) => values.iter().map(text).collect(),
            (value, true) => text(value).map(|text| vec![text]),
            _ => None,
        };
        let texts = texts.ok_or_else(|| {
            let right = if takes_value { "a text, a number, or a list of them" } else { "true or false" };
            let error = self.usage(format!("{key} = {value}: must be {right}"));
            match key {
                // On the command line its image follows the option.
                "docker" | "podman" => error.with_hint(format!(
                    "write {key} = true, docker-image = \"IMAGE\" and extra-docker-args = \"ARGS\""
                )),
                _ => error,
            }
        })?;
        Ok(texts.into_iter().map(|text| format!("--{key}={text}").into()).collect())
    }

    fn unknown(&self, key: &str, what: &str) -> CliError {
        self.usage(format!("\"{key}\" is no {what}"))
    }

    fn usage(&self, why: String) -> CliError {
        CliError::new(ErrorKind::Usage, format!("--config {}: {why}", self.path.display()))
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        _ => None,
    }
}

/// A file for `command` with every option as a comment: its help, then its key and its default or the kind of its value.
pub(crate) fn template(command: &Command) -> String {
    let name = command.get_name();
    let mut text = format!(
        "# Options of `cantle {name}`; `cantle {name} --help` has them at length. What the command line or the environment\n# says wins.\n\n[{name}]\n"
    );
    let is_in_a_file = |option: &&Arg| !option.is_hide_set() || option.get_long() == Some(CONSENT);
    for option in command.get_arguments().filter(is_in_a_file) {
        let Some(key) = option.get_long().filter(|key| !NOT_IN_A_FILE.contains(key)) else { continue };
        let help = option.get_help().map(ToString::to_string).unwrap_or_default();
        text += &format!("\n# {}\n#{key} = {}\n", help.replace('\n', "\n# "), example(option));
    }
    text
}

/// The syntax of a value.
fn example(option: &Arg) -> String {
    if option.get_long() == Some(CONSENT)
        || !matches!(option.get_action(), ArgAction::Set | ArgAction::Append)
    {
        return "true".to_owned();
    }
    let default = option.get_default_values().first().map(|default| default.to_string_lossy().into_owned());
    let name = option.get_value_names().and_then(|names| names.first()).map(ToString::to_string);
    let text = default.or(name).unwrap_or_default();
    let is_list = option.get_num_args().is_some_and(|range| range.max_values() > 1)
        || matches!(option.get_action(), ArgAction::Append);
    match text.parse::<f64>() {
        Ok(_) => text,
        Err(_) if is_list => format!("[\"{text}\"]"),
        Err(_) => format!("\"{text}\""),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::args::Cli;
    use crate::command_line::without_options;

    fn joined(text: &str, words: &str) -> Result<String, CliError> {
        let path = std::env::temp_dir().join(format!("cantle-config-{}", uuid::Uuid::new_v4()));
        std::fs::write(&path, text).unwrap();
        let words = words.replace("FILE", &path.display().to_string());
        let words = words.split(' ').map(OsString::from).collect();
        let done = with_file(words, Cli::command);
        std::fs::remove_file(&path).unwrap();
        let done: Vec<_> = done?.into_iter().map(|word| word.into_string().unwrap()).collect();
        Ok(done.join(" ").replace(&path.display().to_string(), "FILE"))
    }

    #[test]
    fn a_file_says_what_the_command_line_leaves_open() {
        let text = "state = \"/srv/c\"\n[daemon]\ngpus = \"all\"\nqueue = [\"a=0.5\", \"b=2\"]\ndynamic-gpus = true\ndocker = false\n[server]\nlisten = \"0.0.0.0:8008\"\n";
        let done = joined(text, "cantle --config FILE daemon --gpus 0").unwrap();
        assert_eq!(
            done,
            "cantle --config FILE daemon --dynamic-gpus --queue=a=0.5 --queue=b=2 --state=/srv/c --gpus 0",
            "another command's table and what the command line has are left out"
        );
    }

    #[test]
    fn a_table_of_users_is_for_the_commands_that_start_tasks() {
        let text =
            "[daemon]\ntask_user = \"submitter\"\n[task_users]\nalice = \"asmith\"\n\"b@c\" = \"bob\"\n";
        let done = joined(text, "cantle --config FILE daemon").unwrap();
        assert_eq!(
            done,
            "cantle --config FILE daemon --task_user=submitter --task-users=alice=asmith --task-users=b@c=bob"
        );
        assert_eq!(joined(text, "cantle --config FILE doctor").unwrap(), "cantle --config FILE doctor");
        let error = joined("[task_users]\na = 7\n", "cantle --config FILE up").unwrap_err();
        assert!(error.to_string().ends_with("[task_users] a = 7: must be a text"), "{error}");
    }

    #[test]
    fn a_consent_names_its_file() {
        let done = |text: &str| joined(text, "cantle --config FILE up --privileged-task");
        assert_eq!(
            done("[up]\nallow-privileged-task = true\n").unwrap(),
            "cantle --config FILE up --allow-privileged-task=FILE --privileged-task"
        );
        let refused = done("[up]\nallow-privileged-task = \"yes\"\n").unwrap_err();
        assert!(refused.to_string().ends_with("= \"yes\": must be true or false"), "{refused}");
        assert!(!done("[up]\nallow-privileged-task = false\n").unwrap().contains("allow"));
    }

    #[test]
    fn options_that_a_command_requires_may_be_in_the_file() {
        let done = joined("[submit]\nqueue = \"q\"\n", "cantle --config FILE submit -- true").unwrap();
        assert_eq!(done, "cantle --config FILE submit --queue=q -- true");
    }

    #[test]
    fn a_value_that_is_called_like_the_command_is_not_its_name() {
        let done =
            joined("[server]\nlisten = \"[::1]:8008\"\n", "cantle --config FILE --state server server")
                .unwrap();
        assert_eq!(done, "cantle --config FILE --state server server --listen=[::1]:8008");
    }

    #[test]
    fn a_commands_own_option_of_that_name_is_its_own() {
        let words = "cantle controller queues --config FILE";
        assert_eq!(joined("queues: {}", words).unwrap(), words);
    }

    #[test]
    fn the_words_say_all_of_it_without_the_file() {
        let text = "sim-gpus = \"1xT4-16GB\"\n[run]\ngpu = \"0.5\"\n";
        let done = joined(text, "cantle --config FILE run -- x --config y").unwrap();
        let words: Vec<OsString> = done.split(' ').map(OsString::from).collect();
        let kept = without_options(&words, &["--config"]).join(" ".as_ref()).into_string().unwrap();
        assert_eq!(kept, "cantle run --gpu=0.5 --sim-gpus=1xT4-16GB -- x --config y");
        let words = ["cantle", "--config=FILE", "up"].map(OsString::from);
        assert_eq!(without_options(&words, &["--config"]), ["cantle", "up"]);
    }

    #[test]
    fn without_a_file_nothing_changes() {
        assert_eq!(joined("", "cantle run --gpu 0.5 -- true").unwrap(), "cantle run --gpu 0.5 -- true");
    }

    #[test]
    fn each_mistake_is_one_line() {
        let refused_for = |command: &str, text: &str| {
            let error = joined(text, &format!("cantle --config FILE {command}")).unwrap_err();
            let hints = error.hints().join("; ");
            (error.to_string().split_once(": ").unwrap().1.to_owned(), hints)
        };
        let refused = |text: &str| refused_for("server", text);
        assert_eq!(
            refused("[server]\nlisen = \"a\"\n"),
            ("\"lisen\" is no option of cantle server".into(), "did you mean listen?".into())
        );
        assert_eq!(refused("[sever]\n").0, "\"sever\" is no command");
        assert_eq!(refused("[server]\nopen = \"yes\"\n").0, "open = \"yes\": must be true or false");
        assert_eq!(
            refused_for("daemon", "[daemon]\ndocker = [\"base:1\"]\n"),
            (
                "docker = [\"base:1\"]: must be true or false".into(),
                "write docker = true, docker-image = \"IMAGE\" and extra-docker-args = \"ARGS\"".into()
            )
        );
        assert_eq!(
            refused("[server]\nlisten = true\n").0,
            "listen = true: must be a text, a number, or a list of them"
        );
        assert!(refused("[server]\nlisten =\n").0.starts_with("line 2: "));
    }

    #[test]
    fn every_key_of_a_template_is_taken_and_its_file_is_valid() {
        let root = Cli::command();
        for name in ["server", "daemon", "up"] {
            let template = template(root.find_subcommand(name).unwrap());
            let keys = template.lines().filter_map(|line| line.strip_prefix('#')?.split_once(" = "));
            let keys: Vec<_> = keys.filter(|(key, _)| !key.contains(' ')).collect();
            assert!(keys.len() > 3, "{template}");
            for (key, value) in keys {
                let text = format!("[{name}]\n{key} = {value}\n");
                assert!(joined(&text, &format!("cantle --config FILE {name}")).is_ok(), "{text}");
            }
        }
    }
}
