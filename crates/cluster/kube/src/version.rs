//! Asks the API server for its version.

use cantle_kube_model::Version;
use kube::Client;

use crate::KubeError;

/// The group that claims and devices are of.
const DRA_GROUP: &str = "resource.k8s.io";

/// The version of the API server.
///
/// # Errors
/// If it does not answer, or with something that is no version.
pub async fn server_version(client: &Client) -> Result<Version, KubeError> {
    Ok(client.apiserver_version().await?.git_version.parse()?)
}

/// Does the API server serve claims on devices?
///
/// # Errors
/// If it does not answer.
pub(crate) async fn serves_claims(client: &Client) -> Result<bool, KubeError> {
    let groups = client.list_api_groups().await?.groups;
    let mut served = groups.iter().filter(|group| group.name == DRA_GROUP).flat_map(|group| &group.versions);
    Ok(served.any(|served| served.version == "v1"))
}
