//! `--image IMAGE ARGS…`, `--docker [IMAGE ARGS…]`, `--podman [IMAGE ARGS…]`: as in ClearML's command lines, the words that
//! follow are options of `docker run`, up to the next long option of the command itself or `--`. The parser would take them
//! for cantle's own, so each is encoded as one word that it cannot mistake.

use std::ffi::OsString;
use std::path::PathBuf;

use cantle_clearml::Conf;
use cantle_node::Docker;
use cantle_runtime::Engine;
use clap::Args;

use crate::error::{CliError, ErrorKind};

/// The hidden option that carries one such word.
const CARRIER: &str = "container-word";
/// Options of `submit` that docker has too. Each is the command's own, and docker's words go on behind it.
const DOCKERS_TOO: [&str; 2] = ["memory", "name"];

/// The container of a task.
#[derive(Args, Debug)]
pub(crate) struct ImageArgs {
    /// Run the command in a container of this image; the words that follow, up to the next option of cantle or --, are
    /// options of docker run
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

/// The container engine of a daemon's tasks, and what they run in by default.
#[derive(Args, Debug, Clone)]
pub(crate) struct EngineArgs {
    /// Run tasks in containers: --docker [IMAGE ARGS…]; the image and its docker run options apply to tasks that name no image
    #[arg(long, conflicts_with = "podman")]
    docker: bool,
    /// Like --docker, with Podman's service
    #[arg(long)]
    podman: bool,
    /// Image for --docker without one
    #[arg(long, value_name = "IMAGE", env = "CLEARML_DOCKER_IMAGE")]
    docker_image: Option<String>,
    /// docker run options for every container, as one word; they come before the container's own
    #[arg(long, value_name = "ARGS", env = "CLEARML_AGENT_EXTRA_DOCKER_ARGS", allow_hyphen_values = true)]
    extra_docker_args: Option<String>,
    #[command(flatten)]
    words: Words,
    #[command(flatten)]
    socket: SocketArgs,
}

/// Where the container engine listens.
#[derive(Args, Debug, Clone)]
pub(crate) struct SocketArgs {
    /// The container engine's socket [default: Docker's or Podman's usual one]
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
        let why = format!("--docker-socket {given}: must be the socket of an engine on this machine");
        Err(CliError::new(ErrorKind::Usage, why).with_hint("give it as /PATH"))
    }
}

impl ImageArgs {
    /// The options of `docker run` behind the image.
    pub(crate) fn options(&self) -> Vec<String> {
        self.words.words.clone()
    }
}

impl EngineArgs {
    /// The containers of the daemon's tasks; none without `--docker` and `--podman`.
    pub(crate) fn resolve(&self) -> Result<Option<Docker>, CliError> {
        if !self.docker && !self.podman {
            return Ok(None);
        }
        let option = if self.podman { "--podman" } else { "--docker" };
        let (image, options) = image_and_options(option, &self.words.words)?;
        let image = image.or_else(|| self.docker_image.clone().filter(|image| !image.is_empty()));
        let extra = self.extra_docker_args.as_deref().unwrap_or_default();
        let extra_options = shlex::split(extra).ok_or_else(|| {
            CliError::new(
                ErrorKind::Usage,
                format!("--extra-docker-args {extra}: a quote in it is not closed"),
            )
        })?;
        let socket = self.socket.resolve()?.or_else(|| self.podman.then(|| Engine::PODMAN_SOCKET.into()));
        Ok(Some(Docker { image, options, extra_options, socket }))
    }
}

/// Fills in from ClearML's configuration file what the command line and the environment leave open.
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
    let usage = |why: &str| CliError::new(ErrorKind::Usage, format!("{option} {first}: {why}"));
    let split = shlex::split(first).ok_or_else(|| usage("a quote in it is not closed"))?;
    let mut split = split.into_iter();
    let image = split.next().filter(|image| !image.starts_with('-'));
    let image = image.ok_or_else(|| usage("the image comes first, docker's options after it"))?;
    Ok((Some(image), split.chain(rest.iter().cloned()).collect()))
}

/// The command line with docker's words carried. `command_line` declares the options that are cantle's own.
pub(crate) fn carried(mut words: Vec<OsString>, command_line: fn() -> clap::Command) -> Vec<OsString> {
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let Some(first) = words[..end].iter().enumerate().find_map(first_of_dockers) else { return words };
    let first = first.min(end);
    let ours = own_options(&command_line(), &words[..first]);
    let mut at = first;
    while at < end {
        let text = words[at].to_string_lossy().into_owned();
        let name = text.strip_prefix("--").map(|long| long.split('=').next().unwrap_or(long));
        match name.filter(|name| ours.iter().any(|own| own == name)) {
            // With its value.
            Some(name) if DOCKERS_TOO.contains(&name) => at += if text.contains('=') { 1 } else { 2 },
            Some(_) => break,
            None => {
                let mut carrier = OsString::from(format!("--{CARRIER}="));
                carrier.push(std::mem::take(&mut words[at]));
                words[at] = carrier;
                at += 1;
            }
        }
    }
    words
}

/// The position where docker's words begin, if `word` introduces them. The image of `--image` is a value like any
/// other.
fn first_of_dockers((at, word): (usize, &OsString)) -> Option<usize> {
    match word.to_str()? {
        "--image" => Some(at + 2),
        "--docker" | "--podman" => Some(at + 1),
        text if text.starts_with("--image=") => Some(at + 1),
        _ => None,
    }
}

/// The long options of the command that these words name.
fn own_options(root: &clap::Command, words: &[OsString]) -> Vec<String> {
    let command = words.iter().skip(1).find_map(|word| root.find_subcommand(word));
    let options = root.get_arguments().chain(command.into_iter().flat_map(clap::Command::get_arguments));
    options.filter_map(|option| option.get_long().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

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
    fn dockers_words_go_on_behind_an_option_that_both_have() {
        let of = |text: &str| {
            let words = carried(text.split(' ').map(OsString::from).collect(), crate::args::Cli::command);
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
            words.join(" ").replace(&format!("--{CARRIER}="), "+")
        };
        let ours =
            "cantle submit --image i -v /a:/b --memory=1g --pids-limit=4 --name n --cpus 2 --queue q -- c -v";
        let theirs = "cantle submit --image i +-v +/a:/b --memory=1g +--pids-limit=4 --name n +--cpus +2 --queue q -- c -v";
        assert_eq!(of(ours), theirs);
        // Of other commands it is docker's alone.
        assert_eq!(of("cantle run --image i --memory 1g -- c"), "cantle run --image i +--memory +1g -- c");
        assert_eq!(of("cantle submit --image i --memory"), "cantle submit --image i --memory");
        assert_eq!(
            of("cantle daemon --docker i -e A=1 --gpus 0 -d"),
            "cantle daemon --docker +i +-e +A=1 --gpus 0 -d"
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
        assert_eq!(refused.to_string(), "--docker -v: the image comes first, docker's options after it");
    }
}
