//! Creates the pods that reserve GPUs where NVIDIA's device plugin allocates them (docs/adr/0012).
//!
//! ```text
//! bind: no GPU of ours has room ─► reservation in the node's annotation ─► pod ─► any kube-scheduler ─► kubelet
//! bind: placed there ◄─ annotation of the node: who has which GPU ◄─ node agent asks the kubelet ◄──────────┘
//! ```

mod reserver;

pub(super) use reserver::Reserver;
