//! Adds a slice to a `docker run` command line of another program. Stock ClearML agents start their containers by such
//! command lines and watch docker's own client, so the result is a command line again.

use std::path::PathBuf;

use cantle_model::TaskId;

use super::AdmissionError;
use super::admission::{self, Host};
use super::contents;
use super::copies::DriverCopies;
use super::engine::Machine;
use super::flags::{self, Action, Given};
use super::plan::{self, LABEL_LEASE, LABEL_TASK};
use crate::{Cgroup, TaskSpec};

/// A `docker run` command line, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DockerRun {
    engine: Vec<String>,
    gpus: Vec<String>,
    /// Options that concern docker's client and engine, not what the task can reach: they stay as they are.
    client: Vec<String>,
    /// Options that admission has to check.
    options: Vec<String>,
    image_and_command: Vec<String>,
}

/// These would end the client before the container ends, and the slice with it, or leave out the task's own program.
const REFUSED: [(&str, &str); 2] = [
    ("detach", "the slice lives as long as docker's client"),
    ("restart", "a container that starts again has lost its slice"),
];

impl DockerRun {
    /// Reads `docker run OPTIONS IMAGE COMMAND…`.
    ///
    /// # Errors
    /// If it is not such a command line, or has unknown options.
    pub fn parse(words: &[String]) -> Result<Self, AdmissionError> {
        let Some(run) = words.iter().position(|word| word == "run").filter(|&at| at > 0) else {
            return Err(AdmissionError::NotAnOption(words.first().cloned().unwrap_or_default()));
        };
        let (found, rest) = flags::parse_leading(&words[run + 1..])?;
        let mut parts = Self {
            engine: words[..=run].to_vec(),
            gpus: Vec::new(),
            client: Vec::new(),
            options: Vec::new(),
            image_and_command: rest.to_vec(),
        };
        if rest.is_empty() {
            return Err(AdmissionError::Value("docker run".to_owned(), "an image"));
        }
        for (flag, value) in found {
            let word = if value.is_empty() {
                format!("--{}", flag.name)
            } else {
                format!("--{}={value}", flag.name)
            };
            if let Some((_, why)) = REFUSED.iter().find(|(name, _)| *name == flag.name) {
                return Err(AdmissionError::Refused { option: word, why: (*why).to_owned() });
            }
            match flag.action {
                _ if flag.name == "gpus" => parts.gpus.push(value),
                Action::Strip(_) => parts.client.push(word),
                Action::Keep | Action::Refuse(_) => parts.options.push(word),
            }
        }
        Ok(parts)
    }

    /// Index of the one GPU that `--gpus` names: `device=2`, with or without quotes inside.
    ///
    /// # Errors
    /// If it names none or several: a slice is a part of one GPU.
    pub fn gpu_index(&self) -> Result<u32, AdmissionError> {
        let given = self.gpus.join(",");
        let index = given.trim_matches('"').strip_prefix("device=").and_then(|index| index.parse().ok());
        index.ok_or_else(|| {
            AdmissionError::Value(format!("--gpus={given}"), "exactly one GPU, as device=INDEX")
        })
    }

    /// The command line with the slice of `spec` in it, and no other access to the GPU. The image's own copies of the
    /// driver's libraries, `copies`, are covered.
    ///
    /// # Errors
    /// If an option would lift the limit.
    pub fn with_slice(
        &self,
        spec: &TaskSpec,
        task: &TaskId,
        devices: &[PathBuf],
        driver_files: &[PathBuf],
        copies: &DriverCopies,
    ) -> Result<Vec<String>, AdmissionError> {
        self.compose(spec, task, (devices, driver_files), copies, &Machine)
    }

    /// The image.
    pub(super) fn image(&self) -> &str {
        &self.image_and_command[0]
    }

    /// The platform of the image that is wanted; empty if none was named.
    pub(super) fn platform(&self) -> String {
        let named = self.options.iter().find_map(|word| word.strip_prefix("--platform="));
        named.map(str::to_owned).unwrap_or_default()
    }

    fn compose(
        &self,
        spec: &TaskSpec,
        task: &TaskId,
        (devices, driver_files): (&[PathBuf], &[PathBuf]),
        copies: &DriverCopies,
        host: &dyn Host,
    ) -> Result<Vec<String>, AdmissionError> {
        let admitted = admission::admit(&self.options, &plan::protected(spec), host)?;
        let mut words = self.engine.clone();
        words.extend(self.client.iter().cloned());
        words.extend(admitted.options.iter().map(word));
        words.extend(contents::variables(spec).iter().map(|(name, value)| format!("--env={name}={value}")));
        let (mut spec, mut driver_files) = (spec.clone(), driver_files.to_vec());
        if let Some(package) = &copies.package {
            package.put_before(&mut spec, &mut driver_files);
        }
        let mounts = contents::mounts(&spec, &driver_files, &copies.covered);
        words.extend(mounts.iter().map(contents::mount_option));
        words.extend(devices.iter().map(|device| format!("--device={}", device.display())));
        let parent = spec.cgroup.as_ref().and_then(Cgroup::path_for_engine);
        words.extend(parent.map(|path| format!("--cgroup-parent={path}")));
        words.push(format!("--label={LABEL_LEASE}={}", spec.lease));
        words.push(format!("--label={LABEL_TASK}={task}"));
        words.extend(self.image_and_command.iter().cloned());
        Ok(words)
    }
}

fn word(given: &Given) -> String {
    if given.value.is_empty() {
        format!("--{}", given.name)
    } else {
        format!("--{}={}", given.name, given.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn what_stock_agents_compose() {
        let line = words(
            "docker run -t --gpus \"device=2\" -l clearml-worker-id=n:gpu2.25a -e A=1 -v /c:/root/.c --rm img:1 bash -c x",
        );
        let run = DockerRun::parse(&line).unwrap();
        assert_eq!(run.gpu_index(), Ok(2));
        assert_eq!(run.client, ["--tty", "--rm"]);
        assert_eq!(
            run.options,
            ["--label=clearml-worker-id=n:gpu2.25a", "--env=A=1", "--volume=/c:/root/.c"]
        );
        assert_eq!(run.image_and_command, ["img:1", "bash", "-c", "x"]);
    }

    #[test]
    fn one_gpu_exactly() {
        let index =
            |gpus: &str| DockerRun::parse(&words(&format!("docker run {gpus} img"))).unwrap().gpu_index();
        assert_eq!(index("--gpus device=0"), Ok(0));
        for bad in ["--gpus all", "--gpus \"device=0,1\"", "--gpus 1", "--init"] {
            assert!(matches!(index(bad), Err(AdmissionError::Value(..))), "{bad}");
        }
    }

    #[test]
    fn command_lines_that_are_none() {
        for bad in [
            "docker",
            "run img",
            "docker ps",
            "docker run --rm",
            "docker run --no-such img",
            "docker run -d img",
        ] {
            assert!(DockerRun::parse(&words(bad)).is_err(), "{bad}");
        }
    }
}
