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

use super::path::PathArg;
use crate::context::{CommandResult, Context, runtime};
use crate::error::{CliError, ErrorKind};
use crate::host::until_signal;

/// `cantle controller node`
#[derive(Args, Debug)]
pub(crate) struct NodeArgs {
    /// Name of this node in the cluster
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node: String,
    /// How pods get slices
    #[arg(long, value_enum, default_value_t = PathArg::Dra)]
    path: PathArg,
    /// Directory in which the kubelet looks for device plugins (classic path); --kubelet-dir does not change it
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet/device-plugins")]
    device_plugin_dir: PathBuf,
    /// Directory for copies of the driver's files, which pods mount; it has the same path here and on the node. Needed
    /// where the driver has other paths in this program's container than on the node
    #[arg(long, value_name = "DIR")]
    driver_files_dir: Option<PathBuf>,
    /// The kubelet's directory
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    kubelet_dir: PathBuf,
    /// Directory from which the container engine reads CDI specs
    #[arg(long, value_name = "DIR", default_value = "/var/run/cdi")]
    cdi_dir: PathBuf,
    /// Create slices only on GPUs that a pod of cantle has reserved from NVIDIA's device plugin (classic path)
    #[arg(long)]
    reservation: bool,
    /// GPUs to put into MIG mode at the start, e.g. 0-3; they also serve shares and whole GPUs if the mode can change
    /// without a reset
    #[arg(long, value_name = "LIST", value_parser = mig_list)]
    mig: Option<GpuList>,
    /// Write an object for each GPU of this node, for kubectl get gpus.cantle.dev; the chart has their definition
    #[arg(long)]
    gpu_objects: bool,
    /// Address of /healthz, /readyz and /metrics, over HTTP [default: none]
    #[arg(long, value_name = "ADDR")]
    observe_listen: Option<SocketAddr>,
}

fn mig_list(text: &str) -> Result<GpuList, String> {
    GpuList::parse(&[text.to_owned()]).map_err(|error| format!("--mig {text}: {error}"))
}

/// Serves the node until a signal stops it.
pub(super) fn node(context: &Context, kubeconfig: Option<&Path>, args: NodeArgs) -> CommandResult {
    if args.reservation && args.path == PathArg::Dra {
        let text =
            "--reservation is for --path classic: with claims no other plugin may give out the same GPUs";
        return Err(CliError::new(ErrorKind::Usage, text));
    }
    let config = NodeConfig {
        node: args.node,
        installation: Installation::of_this_machine(),
        lib_dir: context.dirs.lib.clone(),
        driver_files_dir: args.driver_files_dir,
        kubelet_dir: args.kubelet_dir,
        cdi_dir: args.cdi_dir,
        mig: args.mig,
        gpu_objects: args.gpu_objects,
        observe: args.observe_listen,
    };
    let plugin = PluginConfig { dir: args.device_plugin_dir, reservation: args.reservation };
    runtime()?.block_on(async {
        let client = cantle_kube::connect(kubeconfig).await?;
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(async move {
            until_signal().await;
            stop.send_replace(true);
        });
        match args.path {
            PathArg::Dra => dra::run(client, config, stopped).await,
            PathArg::Classic => classic::run(client, config, plugin, stopped).await,
        }?;
        Ok(ExitCode::SUCCESS)
    })
}
