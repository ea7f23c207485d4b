//! `cantle controller extender`

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;

use cantle_kube::classic::{ReservationKind, serve_extender};
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
    /// Image of the pods that reserve GPUs where NVIDIA's device plugin gives them out: cantle's own, or any with `sleep`
    #[arg(long, value_name = "IMAGE")]
    reservation_image: Option<String>,
    /// Priority class of those pods; it must not preempt
    #[arg(long, value_name = "NAME", default_value = "cantle-reservation", requires = "reservation_image")]
    reservation_priority_class: String,
}

/// Runs until it is told to stop.
pub(super) fn extender(kubeconfig: Option<&Path>, args: &ExtenderArgs) -> Outcome {
    let listener = listen(args.listen).map_err(from_kube)?;
    let observers = args.observe_listen.map(listen).transpose().map_err(from_kube)?;
    let kind = |image| ReservationKind { image, priority_class: args.reservation_priority_class.clone() };
    let reservation = args.reservation_image.clone().map(kind);
    runtime()?.block_on(async {
        let client = connect(kubeconfig).await.map_err(from_kube)?;
        serve_extender(client, listener, observers, reservation, until_signal()).await.map_err(from_kube)?;
        Ok(ExitCode::SUCCESS)
    })
}
