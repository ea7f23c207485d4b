//! The reasons for refusing a pod, one sentence each: what is wrong, the value that was given, and a correct one.

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// Not what an API server sends.
    #[error("the request holds no pod that can be read: {0}")]
    NotAPod(String),
    /// A label, annotation or resource whose value is none of those it can have.
    #[error("{what} is \"{given}\"; write {right}")]
    Malformed {
        /// Its name.
        what: String,
        /// Its value.
        given: String,
        /// Values it can have.
        right: String,
    },
    /// The pod has two different requests.
    #[error("{one} and {other} ask for different things; keep one of them")]
    Contradiction {
        /// The one.
        one: String,
        /// The other.
        other: String,
    },
    /// It has a number of GPUs, but no amount of each.
    #[error("annotation gpu-fraction-num-devices also needs annotation gpu-fraction or gpu-memory")]
    NothingToMultiply,
    /// The named container does not exist.
    #[error("annotation gpu-fraction-container-name is \"{given}\", but the pod has only {containers}")]
    NoSuchContainer {
        /// Its value.
        given: String,
        /// Those there are.
        containers: String,
    },
    /// The container that gets the GPU is not named.
    #[error(
        "containers {0} ask for a GPU; one can have it, name it in annotation gpu-fraction-container-name"
    )]
    SeveralContainers(String),
    /// A setting that only the injector makes, in a pod that requests nothing.
    #[error(
        "{0} is set by cantle's injector alone; leave it out, and request a share with the label clearml-injector/fraction"
    )]
    Marked(String),
    /// A claim of cantle in more than the container that gets the GPU.
    #[error("container {0} names the claim \"cantle-gpu\", which is the injector's; take it out")]
    ForeignClaim(String),
    /// Something with which a container can get around its limit.
    #[error("container {container} {what}, which would get around its GPU limit; {right}")]
    Lifts {
        /// The container.
        container: String,
        /// The part of its spec that is refused.
        what: String,
        /// The action that solves it.
        right: &'static str,
    },
    /// A scheduler that knows nothing of slices.
    #[error("spec.schedulerName is \"{given}\", which does not place slices; leave it out, or write {right}")]
    ForeignScheduler {
        /// Its name.
        given: String,
        /// The one that does.
        right: String,
    },
    /// A node that was chosen past all schedulers.
    #[error(
        "spec.nodeName is \"{0}\", so no scheduler would give out its slice; write nodeSelector kubernetes.io/hostname in its place"
    )]
    NamedNode(String),
    /// A share of compute time that cannot be kept.
    #[error("{0}")]
    Compute(String),
    /// A share of compute time of no GPU.
    #[error(
        "annotation cantle.dev/compute is \"{0}\", but the pod asks cantle for no part of a GPU; add gpu-fraction, gpu-memory or the label \
         clearml-injector/fraction"
    )]
    ComputeOfNothing(cantle_model::ComputeMode),
    /// A share of compute time, or of the multiprocessors, in words that only NVIDIA's programs read.
    #[error(
        "annotation {what} is \"{given}\", which cantle cannot do; for a share of compute time write cantle.dev/compute: fair, or leave it out"
    )]
    NvidiasCompute {
        /// The annotation.
        what: String,
        /// Its value.
        given: String,
    },
    /// A volume of the node that reaches GPUs or limits.
    #[error(
        "volume {volume} mounts {path} of the node, from where GPUs or their limits can be reached; leave it out"
    )]
    HostPath {
        /// Its name.
        volume: String,
        /// The node's path.
        path: String,
    },
}

impl Denial {
    pub(crate) fn malformed(what: &str, given: &str, right: &str) -> Self {
        Self::Malformed { what: what.to_owned(), given: given.to_owned(), right: right.to_owned() }
    }
}
