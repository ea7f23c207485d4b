//! The `docker run` options that a task may give, and how each is handled.

use super::AdmissionError;

/// One option of a task: its long name and its value, empty for a switch that is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) name: &'static str,
    pub(crate) value: String,
}

/// The handling of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// It reaches the container, after a check of its value.
    Keep,
    /// It is omitted with a line in the log, because cantle does this itself.
    Strip(&'static str),
    /// The task does not start: it would lift the limit.
    Refuse(&'static str),
}

use Action::{Keep, Refuse, Strip};

pub(crate) struct Flag {
    pub(crate) name: &'static str,
    short: Option<char>,
    takes_value: bool,
    pub(crate) action: Action,
}

const fn value(name: &'static str, action: Action) -> Flag {
    Flag { name, short: None, takes_value: true, action }
}

const fn short(short: char, name: &'static str, action: Action) -> Flag {
    Flag { name, short: Some(short), takes_value: true, action }
}

const fn switch(name: &'static str, action: Action) -> Flag {
    Flag { name, short: None, takes_value: false, action }
}

const fn short_switch(short: char, name: &'static str, action: Action) -> Flag {
    Flag { name, short: Some(short), takes_value: false, action }
}

const OUTSIDE: &str = "it lets the task reach processes outside its container";
const DEVICES: &str = "cantle gives the task its GPUs";
const OTHERS: &str = "it brings mounts that cantle has not seen";

/// Every option that is known. An unknown one is refused, because its effect on the limit is not known.
const FLAGS: [Flag; 58] = [
    value("add-host", Keep),
    value("cap-add", Keep),
    value("cap-drop", Keep),
    value("cgroup-parent", Refuse("cantle finds a task's processes by their cgroup")),
    value("cgroupns", Keep),
    short('c', "cpu-shares", Keep),
    value("cpus", Keep),
    value("cpuset-cpus", Keep),
    short_switch('d', "detach", Strip("cantle watches the container itself")),
    value("device", Keep),
    value("device-cgroup-rule", Refuse("it lets the task open devices that it was not given")),
    value("dns", Keep),
    value("dns-search", Keep),
    value("entrypoint", Strip("as ClearML's agent does; give the command instead")),
    short('e', "env", Keep),
    value("env-file", Keep),
    value("expose", Strip("it has no effect on a task")),
    value("gpus", Refuse(DEVICES)),
    value("group-add", Keep),
    short('h', "hostname", Keep),
    switch("init", Keep),
    short_switch('i', "interactive", Strip("a task has no terminal")),
    value("ipc", Keep),
    short('l', "label", Keep),
    value("log-driver", Strip("cantle reads the container's output")),
    value("log-opt", Strip("cantle reads the container's output")),
    short('m', "memory", Keep),
    value("memory-swap", Keep),
    value("mount", Keep),
    value("name", Strip("cantle names the container after its lease")),
    value("network", Keep),
    value("network-alias", Strip("it has no effect on a task")),
    value("oom-score-adj", Keep),
    value("pid", Refuse(OUTSIDE)),
    value("pids-limit", Keep),
    value("platform", Keep),
    switch("privileged", Refuse("it gives the task every GPU and undoes every limit")),
    short('p', "publish", Keep),
    value("pull", Keep),
    switch("read-only", Keep),
    value("restart", Strip("cantle decides whether a task runs again")),
    switch("rm", Strip("cantle removes the container itself")),
    value("runtime", Refuse(DEVICES)),
    value("security-opt", Keep),
    value("shm-size", Keep),
    value("stop-signal", Keep),
    value("stop-timeout", Strip("cantle's own grace applies")),
    value("sysctl", Keep),
    value("tmpfs", Keep),
    short_switch('t', "tty", Strip("a task has no terminal")),
    value("ulimit", Keep),
    short('u', "user", Keep),
    value("userns", Keep),
    value("uts", Keep),
    short('v', "volume", Keep),
    value("volumes-from", Refuse(OTHERS)),
    short('w', "workdir", Keep),
    value("volume-driver", Refuse(OTHERS)),
];

/// Other spellings that `docker run` accepts.
const ALIASES: [(&str, &str); 2] = [("net", "network"), ("net-alias", "network-alias")];

fn by_name(name: &str) -> Option<&'static Flag> {
    let name = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, name)| name);
    FLAGS.iter().find(|flag| flag.name == name)
}

/// Options with their values.
type GivenFlags = Vec<(&'static Flag, String)>;

/// Reads `docker run` options; nothing else may be among them.
pub(crate) fn parse(words: &[String]) -> Result<GivenFlags, AdmissionError> {
    match parse_leading(words)? {
        (found, []) => Ok(found),
        (_, [word, ..]) => Err(AdmissionError::NotAnOption(word.clone())),
    }
}

/// Reads options the way docker does (`--name value`, `--name=value`, `-n value`, `-nvalue`, `-it`) up to the first word
/// that is none: the image. Gives it and what follows, too.
pub(crate) fn parse_leading(words: &[String]) -> Result<(GivenFlags, &[String]), AdmissionError> {
    let mut found = Vec::new();
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        if word == "--" || word == "-" {
            return Err(AdmissionError::NotAnOption(word.clone()));
        }
        if let Some(long) = word.strip_prefix("--") {
            let (name, given) = long.split_once('=').map_or((long, None), |(n, v)| (n, Some(v)));
            let flag = by_name(name).ok_or_else(|| AdmissionError::Unknown(format!("--{name}")))?;
            match (flag.takes_value, given) {
                (false, None | Some("true")) => found.push((flag, String::new())),
                (false, Some("false")) => {}
                (false, Some(_)) => return Err(AdmissionError::Value(word.clone(), "true or false")),
                (true, Some(given)) => found.push((flag, given.to_owned())),
                (true, None) => found.push((flag, next_value(word, &mut rest)?)),
            }
        } else if let Some(cluster) = word.strip_prefix('-') {
            short_flags(word, cluster, &mut rest, &mut found)?;
        } else {
            let image = words.len() - rest.len() - 1;
            return Ok((found, &words[image..]));
        }
    }
    Ok((found, &[]))
}

fn short_flags<'w>(
    word: &str,
    cluster: &str,
    rest: &mut impl Iterator<Item = &'w String>,
    found: &mut GivenFlags,
) -> Result<(), AdmissionError> {
    let mut chars = cluster.chars();
    while let Some(letter) = chars.next() {
        let flag = FLAGS.iter().find(|flag| flag.short == Some(letter));
        let flag = flag.ok_or_else(|| AdmissionError::Unknown(format!("-{letter}")))?;
        if !flag.takes_value {
            found.push((flag, String::new()));
            continue;
        }
        let attached = chars.as_str();
        let attached = attached.strip_prefix('=').unwrap_or(attached);
        let value = if attached.is_empty() { next_value(word, rest)? } else { attached.to_owned() };
        found.push((flag, value));
        return Ok(());
    }
    Ok(())
}

fn next_value<'w>(word: &str, rest: &mut impl Iterator<Item = &'w String>) -> Result<String, AdmissionError> {
    rest.next().cloned().ok_or_else(|| AdmissionError::Value(word.to_owned(), "a value after it"))
}

#[cfg(test)]
mod tests {
    use super::FLAGS;

    #[test]
    fn every_option_is_documented_once() {
        let text = include_str!("../../../../../docs/containers.md");
        let options =
            text.split("## Options a task may bring").nth(1).and_then(|text| text.split("\n## ").next());
        let options = options.unwrap();
        let mut names: Vec<&str> = FLAGS.iter().map(|flag| flag.name).collect();
        for name in &names {
            assert!(options.matches(&format!("`--{name}`")).count() == 1, "--{name}");
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FLAGS.len());
    }
}
