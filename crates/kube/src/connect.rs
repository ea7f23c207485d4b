//! The way to the API server.

use std::path::Path;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::KubeError;

/// A client of the cluster that `kubeconfig` names; without one, of the cluster whose pod this is, or of the user's own
/// `$KUBECONFIG`.
///
/// # Errors
/// If there is no cluster to be found there.
pub async fn connect(kubeconfig: Option<&Path>) -> Result<Client, KubeError> {
    let no_cluster = |error: &dyn std::fmt::Display| KubeError::NoCluster(error.to_string());
    let config = match kubeconfig {
        None => Config::infer().await.map_err(|error| no_cluster(&error))?,
        Some(path) => {
            let file = Kubeconfig::read_from(path).map_err(|error| no_cluster(&error))?;
            let options = KubeConfigOptions::default();
            Config::from_custom_kubeconfig(file, &options).await.map_err(|error| no_cluster(&error))?
        }
    };
    Ok(Client::try_from(config)?)
}
