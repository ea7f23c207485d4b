//! `cantle controller extender`: the scheduler extender of the classic path.

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;

use cantle_kube::classic::{ReservationKind, serve_extender};
use cantle_kube::{connect, listen};
use clap::Args;

use crate::context::{CommandResult, runtime};
use crate::host::until_signal;

/// `cantle controller extender`
#[derive(Args, Debug)]
pub(crate) struct ExtenderArgs {
    /// Address for kube-scheduler's calls, over HTTP; a client that reaches it can place pods, so keep it in the scheduler's pod
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9403")]
    listen: SocketAddr,
    /// Address of /healthz, /readyz and /metrics, over HTTP [default: none]
    #[arg(long, value_name = "ADDR")]
    observe_listen: Option<SocketAddr>,
    /// Image of the pods that reserve GPUs from NVIDIA's device plugin: cantle's own, or any with `sleep`
    #[arg(long, value_name = "IMAGE")]
    reservation_image: Option<String>,
    /// Priority class of those pods; it must not preempt
    #[arg(long, value_name = "NAME", default_value = "cantle-reservation", requires = "reservation_image")]
    reservation_priority_class: String,
}

/// Runs until a signal stops it.
pub(super) fn extender(kubeconfig: Option<&Path>, args: &ExtenderArgs) -> CommandResult {
    let listener = listen(args.listen)?;
    let observers = args.observe_listen.map(listen).transpose()?;
    let kind = |image| ReservationKind { image, priority_class: args.reservation_priority_class.clone() };
    let reservation = args.reservation_image.clone().map(kind);
    runtime()?.block_on(async {
        let client = connect(kubeconfig).await?;
        serve_extender(client, listener, observers, reservation, until_signal()).await?;
        Ok(ExitCode::SUCCESS)
    })
}
