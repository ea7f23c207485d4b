//! Connects to the API server.

use std::env;
use std::error::Error as _;
use std::path::Path;

use kube::config::{InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

use crate::KubeError;

/// The library names every place that it searched, with the system's error for each. Only the place that was meant is of
/// use.
fn reason(error: &InferConfigError) -> String {
    let is_named = env::var_os("KUBECONFIG").is_some_and(|paths| !paths.is_empty());
    let has_file = is_named || env::home_dir().is_some_and(|home| home.join(".kube/config").exists());
    match error.source().and_then(|source| source.downcast_ref()) {
        Some(of_kubeconfig) if has_file => in_file(of_kubeconfig),
        _ if env::var_os("KUBERNETES_SERVICE_HOST").is_some() => error.to_string(),
        _ => "no kubeconfig in $KUBECONFIG or ~/.kube/config, and this is not a pod".to_owned(),
    }
}

fn in_file(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::ReadConfig(why, path) => format!("{}: {why}", path.display()),
        other => other.to_string(),
    }
}

/// A client of the cluster that `kubeconfig` names; without one, of the cluster whose pod this is, or of the user's own
/// `$KUBECONFIG`.
///
/// # Errors
/// If there is no cluster to be found there.
pub async fn connect(kubeconfig: Option<&Path>) -> Result<Client, KubeError> {
    let of_file = |error: KubeconfigError| KubeError::NoCluster(in_file(&error));
    let config = match kubeconfig {
        None => Config::infer().await.map_err(|error| KubeError::NoCluster(reason(&error)))?,
        Some(path) => {
            let file = Kubeconfig::read_from(path).map_err(of_file)?;
            let options = KubeConfigOptions::default();
            Config::from_custom_kubeconfig(file, &options).await.map_err(of_file)?
        }
    };
    Ok(Client::try_from(config)?)
}
