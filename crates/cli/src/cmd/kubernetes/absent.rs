//! Replaces `check`, `cluster` and `controller` in builds without the feature `kubernetes`, such as `make demo`'s: the
//! commands exist, and report what is missing.
#![cfg_attr(feature = "kubernetes", allow(dead_code, reason = "tests of the whole build test this too"))]

use std::ffi::OsString;

use clap::Args;

use crate::error::{CliError, ErrorKind};

/// All further words: they are ignored.
#[derive(Args, Debug)]
pub(crate) struct Ignored {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    words: Vec<OsString>,
}

fn absent() -> CliError {
    CliError::new(ErrorKind::Failed, "this build is the demo's, which has no Kubernetes")
        .with_hint("make build makes the whole program: dist/bin/cantle")
}

/// `cantle check …`
pub(crate) mod check {
    use clap::Subcommand;

    use super::Ignored;
    use crate::context::{CommandResult, Context};

    /// `cantle check …`
    #[derive(Subcommand, Debug)]
    pub(crate) enum CheckCommand {
        /// Check a cluster (not in this build)
        Kubernetes(Ignored),
    }

    pub(crate) fn check(_context: &Context, _command: CheckCommand) -> CommandResult {
        Err(super::absent())
    }
}

/// `cantle controller …`
pub(crate) mod controller {
    use super::Ignored;
    use crate::context::{CommandResult, Context};

    /// `cantle controller …`
    pub(crate) type ControllerArgs = Ignored;

    pub(crate) fn controller(_context: &Context, _args: ControllerArgs) -> CommandResult {
        Err(super::absent())
    }
}

/// `--kubeconfig` of commands that ask a server or a cluster.
pub(crate) mod cluster {
    use std::path::PathBuf;

    use clap::Args;

    use crate::context::{CommandResult, Context};
    use crate::error::CliError;

    /// The source of the answer.
    #[derive(Args, Debug)]
    pub(crate) struct ClusterArg {
        /// Ask the Kubernetes cluster of this kubeconfig (not in this build)
        #[arg(long, value_name = "FILE")]
        pub(crate) kubeconfig: Option<PathBuf>,
    }

    /// There is none.
    #[derive(Debug)]
    pub(crate) enum ClusterReport {}

    impl ClusterArg {
        pub(crate) fn read(&self, _context: &Context) -> Result<Option<ClusterReport>, CliError> {
            if self.kubeconfig.is_some() { Err(super::absent()) } else { Ok(None) }
        }
    }

    pub(crate) fn gpus(_context: &Context, report: &ClusterReport) -> CommandResult {
        match *report {}
    }

    pub(crate) fn projects(_context: &Context, report: &ClusterReport) -> CommandResult {
        match *report {}
    }

    pub(crate) fn why(_context: &Context, report: &ClusterReport, _name: &str) -> CommandResult {
        match *report {}
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    enum Line {
        #[command(subcommand)]
        Check(check::CheckCommand),
        Controller(controller::ControllerArgs),
        Gpus(cluster::ClusterArg),
    }

    #[test]
    fn any_line_of_the_whole_program_is_understood() {
        for line in [
            "cantle check kubernetes --kubeconfig /etc/k",
            "cantle controller node --node-name=a --kubeconfig k",
            "cantle gpus --kubeconfig k",
            "cantle gpus",
        ] {
            assert!(Line::try_parse_from(line.split(' ')).is_ok(), "{line}");
        }
    }

    #[test]
    fn what_is_missing_is_said_with_what_helps() {
        let error = absent();
        assert!(error.to_string().contains("no Kubernetes"));
        assert!(error.hints()[0].starts_with("make build"));
    }
}
