//! `cantle controller extender`

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;

use cantle_kube::classic::serve_extender;
use cantle_kube::{connect, listen};
use clap::Args;

use super::from_kube;
use crate::cmd::runtime;
use crate::cmd::up::until_signal;
use crate::error::Outcome;

/// The scheduler's extender.
#[derive(Args, Debug)]
pub(crate) struct ExtenderArgs {
    /// Where kube-scheduler calls, over HTTP; who can reach this can place pods, so it stays in the scheduler's own pod
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9403")]
    listen: SocketAddr,
    /// Where /healthz, /readyz and /metrics are, over HTTP; default: nowhere
    #[arg(long, value_name = "ADDR")]
    observe_listen: Option<SocketAddr>,
}

/// Runs until it is told to stop.
pub(super) fn extender(kubeconfig: Option<&Path>, args: &ExtenderArgs) -> Outcome {
    let listener = listen(args.listen).map_err(from_kube)?;
    let observers = args.observe_listen.map(listen).transpose().map_err(from_kube)?;
    runtime()?.block_on(async {
        let client = connect(kubeconfig).await.map_err(from_kube)?;
        serve_extender(client, listener, observers, until_signal()).await.map_err(from_kube)?;
        Ok(ExitCode::SUCCESS)
    })
}
