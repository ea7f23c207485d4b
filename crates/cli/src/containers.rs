//! `--image IMAGE ARGS…`, `--docker [IMAGE ARGS…]`, `--podman [IMAGE ARGS…]`: the words behind them are options of `docker run`,
//! whatever they look like, up to the next long option of the command itself or `--`. So ClearML's command lines have it. The
//! parser would take them for our own, so each becomes one word that it can't mistake.

use std::ffi::OsString;
use std::path::PathBuf;

use cantle_agent::Docker;
use cantle_clearml::Conf;
use cantle_runtime::Engine;
use clap::{Args, CommandFactory as _};

use crate::args::Cli;
use crate::error::{CliError, Kind};

/// The hidden option that carries one such word.
const CARRIER: &str = "container-word";

/// The container that a task wants.
#[derive(Args, Debug)]
pub(crate) struct ImageArgs {
    /// Run it in a container of this image; more words, up to the next option of cantle or --, are options of docker run
    #[arg(long, value_name = "IMAGE> <ARGS…")]
    pub(crate) image: Option<String>,
    #[command(flatten)]
    words: Words,
}

/// One of those words; see the module.
#[derive(Args, Debug, Clone, Default)]
struct Words {
    #[arg(id = CARRIER, long = CARRIER, hide = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// Which engine runs a daemon's tasks, and in what.
#[derive(Args, Debug, Clone)]
pub(crate) struct EngineArgs {
    /// Run tasks in containers: --docker [IMAGE ARGS…]; image and docker run options are for tasks that name no image
    #[arg(long, conflicts_with = "podman")]
    docker: bool,
    /// As --docker, with Podman's service
    #[arg(long)]
    podman: bool,
    /// The image if --docker names none
    #[arg(long, value_name = "IMAGE", env = "CLEARML_DOCKER_IMAGE")]
    docker_image: Option<String>,
    /// docker run options for every container, before its own, as one word
    #[arg(long, value_name = "ARGS", env = "CLEARML_AGENT_EXTRA_DOCKER_ARGS", allow_hyphen_values = true)]
    extra_docker_args: Option<String>,
    #[command(flatten)]
    words: Words,
    #[command(flatten)]
    socket: SocketArgs,
}

/// Which engine.
#[derive(Args, Debug, Clone)]
pub(crate) struct SocketArgs {
    /// The container engine's socket; default: Docker's or Podman's usual one
    #[arg(long, value_name = "PATH", env = "DOCKER_HOST")]
    docker_socket: Option<String>,
}

impl SocketArgs {
    /// The socket, if one was named: a path, or `unix://` and a path as docker's own client has it.
    pub(crate) fn resolve(&self) -> Result<Option<PathBuf>, CliError> {
        let Some(given) = self.docker_socket.as_deref().filter(|given| !given.is_empty()) else {
            return Ok(None);
        };
        let path = given.strip_prefix("unix://").unwrap_or(given);
        if path.starts_with('/') {
            return Ok(Some(PathBuf::from(path)));
        }
        let why = format!("--docker-socket {given}: give the socket of an engine on this machine, as /PATH");
        Err(CliError::new(Kind::Usage, why))
    }
}

impl ImageArgs {
    /// The options of `docker run` behind the image.
    pub(crate) fn options(&self) -> Vec<String> {
        self.words.words.clone()
    }
}

impl EngineArgs {
    /// What the daemon is to run its tasks in; none without `--docker` and `--podman`.
    pub(crate) fn resolve(&self) -> Result<Option<Docker>, CliError> {
        if !self.docker && !self.podman {
            return Ok(None);
        }
        let option = if self.podman { "--podman" } else { "--docker" };
        let (image, options) = image_and_options(option, &self.words.words)?;
        let image = image.or_else(|| self.docker_image.clone().filter(|image| !image.is_empty()));
        let extra = self.extra_docker_args.as_deref().unwrap_or_default();
        let extra_options = shlex::split(extra).ok_or_else(|| {
            CliError::new(Kind::Usage, format!("--extra-docker-args {extra}: a quote in it is not closed"))
        })?;
        let socket = self.socket.resolve()?.or_else(|| self.podman.then(|| Engine::PODMAN_SOCKET.into()));
        Ok(Some(Docker { image, options, extra_options, socket }))
    }
}

/// What the command line and the environment leave open, ClearML's configuration file may say.
pub(crate) fn complete(docker: &mut Docker, conf: &Conf) {
    if docker.image.is_none() {
        docker.image = conf.text("agent.default_docker.image");
        docker.options = conf.list("agent.default_docker.arguments");
    }
    if docker.extra_options.is_empty() {
        docker.extra_options = conf.list("agent.extra_docker_arguments");
    }
}

/// The first word is the image. In quotes it may bring its options along, as ClearML's pages show it.
fn image_and_options(option: &str, words: &[String]) -> Result<(Option<String>, Vec<String>), CliError> {
    let Some((first, rest)) = words.split_first() else { return Ok((None, Vec::new())) };
    let usage = |why: &str| CliError::new(Kind::Usage, format!("{option} {first}: {why}"));
    let split = shlex::split(first).ok_or_else(|| usage("a quote in it is not closed"))?;
    let mut split = split.into_iter();
    let image = split.next().filter(|image| !image.starts_with('-'));
    let image = image.ok_or_else(|| usage("the image comes first, docker's options after it"))?;
    Ok((Some(image), split.chain(rest.iter().cloned()).collect()))
}

/// The command line with docker's words carried.
pub(crate) fn carried(words: Vec<OsString>) -> Vec<OsString> {
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let Some(first) = words[..end].iter().enumerate().find_map(first_of_dockers) else { return words };
    let first = first.min(end);
    let ours = own_options(&words[..first]);
    let is_ours = |word: &OsString| {
        let text = word.to_string_lossy();
        let name = text.strip_prefix("--").map(|long| long.split('=').next().unwrap_or(long));
        name.is_some_and(|name| ours.iter().any(|own| own == name))
    };
    let last = words[first..end].iter().position(is_ours).map_or(end, |length| first + length);
    let carry = |(at, word): (usize, OsString)| {
        if !(first..last).contains(&at) {
            return word;
        }
        let mut carrier = OsString::from(format!("--{CARRIER}="));
        carrier.push(word);
        carrier
    };
    words.into_iter().enumerate().map(carry).collect()
}

/// Where docker's words begin, if `word` introduces them. The image of `--image` is a value like any other.
fn first_of_dockers((at, word): (usize, &OsString)) -> Option<usize> {
    match word.to_str()? {
        "--image" => Some(at + 2),
        "--docker" | "--podman" => Some(at + 1),
        text if text.starts_with("--image=") => Some(at + 1),
        _ => None,
    }
}

/// The long options of the command that these words name.
fn own_options(words: &[OsString]) -> Vec<String> {
    let root = Cli::command();
    let command = words.iter().skip(1).find_map(|word| root.find_subcommand(word));
    let options = root.get_arguments().chain(command.into_iter().flat_map(clap::Command::get_arguments));
    options.filter_map(|option| option.get_long().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carried_text(line: &str) -> String {
        let words = carried(line.split(' ').map(Into::into).collect());
        let text = words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        text.replace("--container-word=", "@")
    }

    #[test]
    fn dockers_words_are_kept_apart_from_ours() {
        for (given, expected) in [
            ("cantle run --gpu 0.5 -- docker --image x", "cantle run --gpu 0.5 -- docker --image x"),
            ("cantle run --image img -- ls -l", "cantle run --image img -- ls -l"),
            ("cantle run --image img -e A=1 -- ls", "cantle run --image img @-e @A=1 -- ls"),
            ("cantle run --image=img --ipc=host -- ls", "cantle run --image=img @--ipc=host -- ls"),
            (
                "cantle run --image img -v /a:/b --gpu 1 -- ls",
                "cantle run --image img @-v @/a:/b --gpu 1 -- ls",
            ),
            ("cantle run --image", "cantle run --image"),
            ("cantle daemon --docker --queue q", "cantle daemon --docker --queue q"),
            (
                "cantle daemon --docker img -v /a:/b --ipc=host --queue q=0.5 --gpus 0,1",
                "cantle daemon --docker @img @-v @/a:/b @--ipc=host --queue q=0.5 --gpus 0,1",
            ),
            ("cantle up --queue q --podman img -it", "cantle up --queue q --podman @img @-it"),
            (
                "cantle submit --image img -e A=1 --queue q -- --docker",
                "cantle submit --image img @-e @A=1 --queue q -- --docker",
            ),
        ] {
            assert_eq!(carried_text(given), expected);
        }
    }

    #[test]
    fn clearmls_file_fills_in_what_is_not_said() {
        let text = r#"agent { default_docker { image: "conf:1", arguments: ["--ipc=host"] }, extra_docker_arguments: ["--init"] }"#;
        let conf = Conf::parse(text, &|_| None).unwrap();
        let mut docker = Docker::default();
        complete(&mut docker, &conf);
        assert_eq!(
            (docker.image.as_deref(), docker.options.concat().as_str()),
            (Some("conf:1"), "--ipc=host")
        );
        assert_eq!(docker.extra_options, ["--init"]);
        let mut named = Docker { image: Some("own:1".into()), ..Docker::default() };
        complete(&mut named, &conf);
        assert_eq!(
            (named.image.as_deref(), named.options.len()),
            (Some("own:1"), 0),
            "its options too are the command line's"
        );
    }

    #[test]
    fn the_image_comes_first() {
        let of = |words: &[&str]| {
            image_and_options("--docker", &words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(of(&[]).unwrap(), (None, Vec::new()));
        let (image, options) = of(&["img:1 -e 'A=b c'", "-v", "/a:/b"]).unwrap();
        assert_eq!((image.as_deref(), options.join("|").as_str()), (Some("img:1"), "-e|A=b c|-v|/a:/b"));
        let refused = of(&["-v", "/a:/b"]).unwrap_err();
        assert_eq!(refused.text(), "--docker -v: the image comes first, docker's options after it");
    }
}
