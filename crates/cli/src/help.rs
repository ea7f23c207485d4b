//! The help of `cantle` itself: its commands by what they are for. A command's own help has its options first, and with -h those of
//! all commands only where people need them.

use clap::Command;

/// The commands that few need: the help has only their names, so that it fits a screen.
const OTHERS: &str = "More";

/// The groups of commands, in this order.
const GROUPS: [(&str, &[&str]); 4] = [
    (
        "Tasks",
        &[
            "run", "submit", "shell", "notebook", "tasks", "why", "logs", "exec", "attach", "forward",
            "stop", "requeue", "move", "extend", "wait", "notify", "top", "gpus", "ps", "queues", "projects",
            "usage", "events", "limits",
        ],
    ),
    ("Machines", &["up", "server", "daemon", "nodes", "pools", "mig", "doctor", "controller", "check"]),
    ("Administration", &["login", "credentials", "users", "quota", "audit", "backup", "restore", "db"]),
    (
        OTHERS,
        &[
            "secrets",
            "suspend",
            "resume",
            "resize",
            "advise",
            "budget",
            "explain",
            "simulate",
            "sim",
            "completions",
            "man",
            "docker-run",
            "image-slice",
        ],
    ),
];

/// The command line with its commands in groups.
pub(crate) fn grouped(command_line: Command) -> Command {
    let mut lines = vec!["{about}\n\n{usage-heading} {usage}".to_owned()];
    for (group, names) in GROUPS {
        lines.push(format!("\n{group}:"));
        if group == OTHERS {
            lines.push(format!("  {}", names.join(" ")));
            continue;
        }
        let commands = names.iter().filter_map(|name| command_line.find_subcommand(name));
        lines.extend(commands.map(|command| {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            format!("  {:12}  {}", command.get_name(), short(&about))
        }));
    }
    lines.push(
        "\nOptions of a command: cantle COMMAND -h; with those of every command: cantle COMMAND --help"
            .to_owned(),
    );
    lines.push("Before the command: --config FILE takes options from a file. Alone: --version\n".to_owned());
    let text = lines.join("\n");
    command_line.help_template(text)
}

/// The first part of a sentence, so that a line fits.
fn short(about: &str) -> &str {
    about.split([';', '(']).next().unwrap_or(about).trim_end()
}

/// The command that was called, as users write it: `cantle users list`.
pub(crate) fn called(words: &[String], command_line: &Command) -> String {
    let (mut names, mut at) = (vec![command_line.get_name().to_owned()], command_line);
    for word in words.iter().skip(1).take_while(|word| *word != "--") {
        if let Some(command) = at.find_subcommand(word) {
            names.push(command.get_name().to_owned());
            at = command;
        }
    }
    names.join(" ")
}

/// A refusal of the server, with the command that was called in place of the call by which the server knows it.
pub(crate) fn in_words(message: &str, called: &str) -> String {
    let is_call = |word: &str| cantle_server::endpoints().any(|endpoint| endpoint == word);
    let words = message.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/')));
    let calls = words.map(|word| word.trim_matches('.')).filter(|word| is_call(word));
    calls.fold(message.to_owned(), |text, call| text.replace(call, called))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::args::Cli;

    #[test]
    fn each_command_is_in_one_group() {
        let command_line = Cli::command();
        let shown = command_line.get_subcommands().filter(|command| !command.is_hide_set());
        let mut shown: Vec<&str> = shown.map(Command::get_name).collect();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        shown.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, shown);
    }

    #[test]
    fn the_help_fits_a_screen_and_the_short_help_of_a_command_has_its_own_options() {
        let help = grouped(Cli::command()).render_help().to_string();
        assert!(help.lines().count() <= 56, "{} lines", help.lines().count());
        assert!(help.lines().all(|line| line.chars().count() <= 110), "{help}");
        let mut command_line = Cli::command();
        command_line.build();
        for (name, most) in [("nodes", 14), ("limits", 14), ("stop", 16), ("tasks", 34)] {
            let command = command_line.find_subcommand_mut(name).unwrap();
            let short = command.render_help().to_string();
            assert!(short.lines().count() <= most, "{name}: {} lines\n{short}", short.lines().count());
            let long = command.render_long_help().to_string();
            let (own, of_all) = (long.find("\nOptions:"), long.find("\nOptions of every command:"));
            assert!(own.is_none_or(|own| own < of_all.unwrap()), "{long}");
            assert!(long.contains("--client-cert"), "the negative control: all are in the long help");
        }
    }

    #[test]
    fn errors_name_the_command() {
        let called = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            super::called(&words, &Cli::command())
        };
        assert_eq!(called("cantle -o json users --keys x list"), "cantle users list");
        assert_eq!(called("cantle submit --queue q -- tasks"), "cantle submit");
        let refusal =
            "Forbidden (projects.create needs the right \"submit\" in project default; anna lacks it)";
        assert_eq!(
            in_words(refusal, "cantle submit"),
            "Forbidden (cantle submit needs the right \"submit\" in project default; anna lacks it)"
        );
        for other in [
            "http://cantle.example.org/x failed",
            "model tasks.pt is missing",
            "see docs/tasks.md",
            "e.g. this",
        ] {
            assert_eq!(in_words(other, "cantle run"), other);
        }
    }
}
