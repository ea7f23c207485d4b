//! Errors of calls to a cluster, one line each: what is wrong, the value that was given, and a correct one.

use std::io;
use std::path::PathBuf;

use cantle_kube_model::names::FRACTIONING_CONDITION;
use cantle_kube_model::queues::QueueFileError;
use cantle_kube_model::{ClaimError, DroppedError, ObjectError, Version, VersionError};

/// An error of the Kubernetes part.
#[derive(Debug, thiserror::Error)]
pub enum KubeError {
    /// Neither a kubeconfig nor a service account.
    #[error("no cluster: {0}")]
    NoCluster(String),
    /// The API server, or the way to it.
    #[error("Kubernetes API: {}", words(.0))]
    Api(#[from] Box<kube::Error>),
    /// A version that has not what cantle needs.
    #[error(
        "Kubernetes {found} cannot share all GPUs of a node by claims, which takes {} or newer; use the classic path",
        Version::FLOOR
    )]
    TooOld {
        /// The server's version.
        found: Version,
    },
    /// A version that makes no sense.
    #[error(transparent)]
    Version(#[from] VersionError),
    /// An object of cantle that is not in cantle's format.
    #[error("an object of cantle's is not as cantle writes it: {0}")]
    Object(#[source] serde_json::Error),
    /// A certificate that cannot be made.
    #[error("cannot make a certificate: {0}")]
    Certificate(#[source] rcgen::Error),
    /// A certificate or key that cannot be used.
    #[error("the certificate or its key cannot be used: {0}; both must be PEM and belong together")]
    Tls(String),
    /// A file that cannot be read.
    #[error("cannot read {path}: {why}")]
    File {
        /// Its path.
        path: String,
        /// Why.
        #[source]
        why: std::io::Error,
    },
    /// An address that cannot be listened on.
    #[error("cannot listen on {0}: {1}")]
    Listen(std::net::SocketAddr, #[source] std::io::Error),
    /// A listener that fails.
    #[error("cannot serve: {0}")]
    Serve(#[source] std::io::Error),
    /// Something that was published and not kept.
    #[error(transparent)]
    Dropped(#[from] DroppedError),
    /// A claim that cannot be prepared.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// A pod on the classic path that cannot have its slice.
    #[error("pod {pod}: {why}")]
    Slice {
        /// Namespace and name.
        pod: String,
        /// The fault.
        why: String,
    },
    /// NVIDIA's daemon for fractions is on the node.
    #[error(
        "node {0} has condition {FRACTIONING_CONDITION}: a daemon of KAI or Run:ai (NvFractions) sets limits on the same GPUs; \
         keep one of the two away from this node (cantle's node.nodeSelector, or the daemon's)"
    )]
    Fractioned(String),
    /// A node that others always write first.
    #[error("node {0}: others keep writing into it; trying again")]
    Contended(String),
    /// The kubelet's answer, or that it has none.
    #[error("kubelet at {}: {why}", path.display())]
    Kubelet {
        /// Its socket.
        path: PathBuf,
        /// Its message.
        why: String,
    },
    /// A version without what the classic path needs.
    #[error("Kubernetes {found} is too old for the classic path; it needs at least {}", Version::CLASSIC)]
    TooOldForClassic {
        /// The server's version.
        found: Version,
    },
    /// A socket for the kubelet.
    #[error("socket {}: {why}", path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// The error of the system.
        why: io::Error,
    },
    /// The directory for the container engine.
    #[error("CDI specs in {}: {why}; give the directory that the container engine reads with --cdi-dir", dir.display())]
    Cdi {
        /// The directory.
        dir: PathBuf,
        /// The error of the system.
        why: io::Error,
    },
    /// The API server did not answer, or an answer ended too early. The caller tries again.
    #[error("the connection to the API server: {0}")]
    Interrupted(String),
    /// Work that did not come to its end.
    #[error("internal error: {0}; please report this")]
    Lost(String),
    /// The ClearML server, or the way to it.
    #[error(transparent)]
    Server(#[from] cantle_clearml::WireError),
    /// Quotas without a view of the cluster.
    #[error(
        "projects have quotas, but the GPUs of the cluster cannot be read: this account must be allowed to list and watch nodes, pods, resourceslices and resourceclaims"
    )]
    Unseen,
    /// A queue that is not there.
    #[error("there is no queue {0:?}; create it, or set agentk8sglue.createQueueIfNotExists: true")]
    NoSuchQueue(String),
    /// The file with the queues to serve.
    #[error("{}: {why}", path.display())]
    Queues {
        /// The file.
        path: PathBuf,
        /// The fault.
        why: QueueFileError,
    },
    /// A decision that breaks a rule.
    #[error("refusing to execute a plan that breaks a rule ({0}); please report this")]
    Plan(#[from] cantle_decide::BrokenPlan),
    /// The node's part.
    #[error(transparent)]
    Node(#[from] cantle_node::NodeError),
}

impl From<kube::Error> for KubeError {
    fn from(error: kube::Error) -> Self {
        Self::Api(Box::new(error))
    }
}

impl From<ObjectError> for KubeError {
    fn from(error: ObjectError) -> Self {
        Self::Object(error.0)
    }
}

/// The API server's own sentence, where it has one.
fn words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        error => error.to_string(),
    }
}

impl KubeError {
    /// Hints for the user.
    #[must_use]
    pub fn hints(&self) -> Vec<String> {
        match self {
            Self::NoCluster(_) => vec!["give --kubeconfig FILE, or set KUBECONFIG".to_owned()],
            Self::Node(error) => error.hints(),
            Self::Server(error) => error.hints(),
            _ => Vec::new(),
        }
    }

    /// The exit code that belongs to it (see the list in the README).
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::NoCluster(_) | Self::Queues { .. } => 2,
            Self::NoSuchQueue(_) => 3,
            Self::Unseen => 4,
            Self::Fractioned(_) => 8,
            Self::Server(cantle_clearml::WireError::Unauthorized { .. }) => 4,
            Self::TooOld { .. } | Self::TooOldForClassic { .. } | Self::Dropped(_) => 7,
            Self::Api(_)
            | Self::Version(_)
            | Self::Object(_)
            | Self::Certificate(_)
            | Self::Tls(_)
            | Self::File { .. }
            | Self::Listen(..)
            | Self::Serve(_)
            | Self::Plan(_)
            | Self::Claim(_)
            | Self::Slice { .. }
            | Self::Contended(_)
            | Self::Kubelet { .. }
            | Self::Socket { .. }
            | Self::Cdi { .. }
            | Self::Server(_)
            | Self::Interrupted(_)
            | Self::Lost(_) => 1,
            Self::Node(error) => error.exit_code(),
        }
    }
}
