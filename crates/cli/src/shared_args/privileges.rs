use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use cantle_runtime::Privileges;
use clap::Args;

use crate::error::{CliError, ErrorKind};

/// The key by which the file of `--config` allows `--privileged-task`. As an option its value is that file, and the file is asked.
pub(crate) const CONSENT: &str = "allow-privileged-task";

/// Extra privileges of tasks. In a container, the engine's options decide.
#[derive(Args, Debug, Clone, Copy, Default)]
pub(crate) struct PrivilegeArgs {
    /// Give a task of root the machine's privileges: it sees all processes and can evade its limit (outside of containers)
    #[arg(long, conflicts_with = "no_new_privileges")]
    privileged_task: bool,
    /// Let no program of a task gain privileges: sudo and other setuid programs have no effect (outside of containers)
    #[arg(long)]
    no_new_privileges: bool,
}

impl PrivilegeArgs {
    /// Neither option has an effect in containers.
    pub(crate) fn check(self, in_containers: bool) -> Result<(), CliError> {
        if in_containers && self.privileges() != Privileges::Own {
            let text = "--privileged-task and --no-new-privileges are for tasks outside of containers";
            return Err(CliError::new(ErrorKind::Usage, text).with_hint("give the engine's own options"));
        }
        Ok(())
    }

    pub(crate) const fn privileges(self) -> Privileges {
        match (self.privileged_task, self.no_new_privileges) {
            (true, _) => Privileges::Machine,
            (false, true) => Privileges::NoNew,
            (false, false) => Privileges::Own,
        }
    }
}

/// The administrator's consent to privileged tasks of an agent, whose tasks are other people's. The caller of `cantle run` needs none: the
/// task is the caller's own.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct ConsentArgs {
    /// Let --privileged-task count. Only a file of --config can say so, and only one that nobody but its owner can write
    #[arg(long, alias = "allow_privileged_task", hide = true, value_name = "FILE")]
    allow_privileged_task: Option<PathBuf>,
}

impl ConsentArgs {
    /// An agent starts privileged tasks only if its file says that it may.
    pub(crate) fn check(&self, asked: Privileges) -> Result<(), CliError> {
        if asked != Privileges::Machine {
            return Ok(());
        }
        let refused = |why: String| {
            let hint = format!(
                "add {CONSENT} = true to the table of the command in /etc/cantle/agent.toml, or in another file that --config names: such \
                 tasks can stop their agent (cantle explain privileged-task)"
            );
            CliError::new(ErrorKind::Refused, format!("--privileged-task: {why}")).with_hint(hint)
        };
        let Some(file) = &self.allow_privileged_task else {
            return Err(refused(format!("no file of the administrator has {CONSENT} = true")));
        };
        consent(file).map_err(|why| refused(format!("{}: {why}", file.display())))
    }
}

/// Does the file say so, and can only the user of this process or root have written it?
fn consent(file: &Path) -> Result<(), String> {
    let mut opened = File::open(file).map_err(|error| error.to_string())?;
    let found = opened.metadata().map_err(|error| error.to_string())?;
    let own_uid = std::fs::metadata("/proc/self").map_or(0, |own| own.uid());
    let is_ours = found.uid() == 0 || found.uid() == own_uid;
    if !is_ours || found.mode() & 0o022 != 0 {
        return Err(format!(
            "{CONSENT} does not count in a file that others can write (owner {}, mode {:04o})",
            found.uid(),
            found.mode() & 0o7777
        ));
    }
    let mut text = String::new();
    opened.read_to_string(&mut text).map_err(|error| error.to_string())?;
    let options: toml::Table = text.parse().map_err(|error: toml::de::Error| error.message().to_owned())?;
    let says_so = |table: &toml::Value| {
        [CONSENT, "allow_privileged_task"]
            .iter()
            .any(|key| table.get(key).and_then(toml::Value::as_bool) == Some(true))
    };
    if ["daemon", "up"].iter().any(|command| options.get(*command).is_some_and(says_so)) {
        Ok(())
    } else {
        Err(format!("it has no {CONSENT} = true"))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_privileged_task_of_an_agent_needs_the_consent_of_a_file() {
        let path = std::env::temp_dir().join(format!("cantle-consent-{}", uuid::Uuid::new_v4()));
        let answer = |text: &str, mode: u32| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let args = ConsentArgs { allow_privileged_task: Some(path.clone()) };
            args.check(Privileges::Machine).map_err(|error| error.to_string())
        };
        assert_eq!(answer("[daemon]\nallow-privileged-task = true\n", 0o600), Ok(()));
        assert_eq!(answer("[up]\nallow_privileged_task = true\n", 0o644), Ok(()));
        for text in ["[daemon]\nallow-privileged-task = false\n", "allow-privileged-task = true\n", ""] {
            assert!(
                answer(text, 0o600).unwrap_err().ends_with("it has no allow-privileged-task = true"),
                "{text}"
            );
        }
        let loose = answer("[daemon]\nallow-privileged-task = true\n", 0o664).unwrap_err();
        assert!(loose.contains("others can write") && loose.contains("mode 0664"), "{loose}");
        fs::remove_file(&path).unwrap();
        let without = ConsentArgs::default();
        assert_eq!(without.check(Privileges::Own).map_err(|error| error.to_string()), Ok(()));
        let refused = without.check(Privileges::Machine).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "--privileged-task: no file of the administrator has allow-privileged-task = true"
        );
        assert_eq!(refused.kind(), ErrorKind::Refused);
    }
}
