use cantle_runtime::Privileges;
use clap::Args;

use crate::error::{CliError, ErrorKind};

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
