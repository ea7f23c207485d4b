//! `cantle controller node`: the DRA driver or the device plugin of a node.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cantle_driver::Installation;
use cantle_kube::classic::{self, PluginConfig};
use cantle_kube::{NodeConfig, dra};
use cantle_model::GpuList;
use clap::Args;
use tokio::sync::watch;

use super::{PathArg, from_kube};
use crate::cmd::up::until_signal;
use crate::cmd::{Context, runtime};
use crate::error::{CliError, Kind, Outcome};

/// `cantle controller node`
#[derive(Args, Debug)]
pub(crate) struct NodeArgs {
    /// Name of this node in the cluster
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node: String,
    /// How pods come to their slices
    #[arg(long, value_enum, default_value_t = PathArg::Dra)]
    path: PathArg,
    /// Where the kubelet looks for device plugins (classic path); wherever else its own folder is, this one is fixed
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet/device-plugins")]
    device_plugin_dir: PathBuf,
    /// The kubelet's folder
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    kubelet_dir: PathBuf,
    /// Where the container engine reads CDI specs
    #[arg(long, value_name = "DIR", default_value = "/var/run/cdi")]
    cdi_dir: PathBuf,
    /// NVIDIA's device plugin gives out this node's GPUs: slices are made only on those that a pod of cantle's has reserved
    /// (classic path)
    #[arg(long)]
    reservation: bool,
    /// GPUs to put into MIG mode at the start, e.g. 0-3; they serve shares and whole GPUs too where the mode can change
    /// without a reset
    #[arg(long, value_name = "LIST", value_parser = mig_list)]
    mig: Option<GpuList>,
    /// Where /healthz, /readyz and /metrics are, over HTTP; default: nowhere
    #[arg(long, value_name = "ADDR")]
    observe_listen: Option<SocketAddr>,
}

fn mig_list(text: &str) -> Result<GpuList, String> {
    GpuList::parse(&[text.to_owned()]).map_err(|error| format!("--mig {text}: {error}"))
}

/// Serves the node until it is told to stop.
pub(super) fn node(context: &Context, kubeconfig: Option<&Path>, args: NodeArgs) -> Outcome {
    if args.reservation && args.path == PathArg::Dra {
        return Err(CliError::new(
            Kind::Usage,
            "--reservation is for --path classic: with claims no other plugin may give out the same GPUs",
        ));
    }
    let config = NodeConfig {
        node: args.node,
        installation: Installation::of_this_machine(),
        lib_dir: context.places.lib.clone(),
        kubelet_dir: args.kubelet_dir,
        cdi_dir: args.cdi_dir,
        mig: args.mig,
        observe: args.observe_listen,
    };
    let plugin = PluginConfig { dir: args.device_plugin_dir, reservation: args.reservation };
    runtime()?.block_on(async {
        let client = cantle_kube::connect(kubeconfig).await.map_err(from_kube)?;
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(async move {
            until_signal().await;
            stop.send_replace(true);
        });
        match args.path {
            PathArg::Dra => dra::run(client, config, stopped).await,
            PathArg::Classic => classic::run(client, config, plugin, stopped).await,
        }
        .map_err(from_kube)?;
        Ok(ExitCode::SUCCESS)
    })
}
