//! Beside NVIDIA's device plugin: a GPU serves slices only while a pod of cantle's has it as `nvidia.com/gpu`, so no other
//! scheduler can give it away (docs/adr/0012).
//!
//! ```text
//! bind: no GPU of ours has room ─► reservation in the node's annotation ─► pod ─► any kube-scheduler ─► kubelet
//! bind: placed there ◄─ annotation of the node: who has which GPU ◄─ node agent asks the kubelet ◄──────────┘
//! ```

mod pod;
mod reserver;
mod rules;
#[cfg(test)]
mod tests;

pub use pod::Kind;
pub(super) use reserver::Reserver;
pub(super) use rules::{Placed, best, has_room, holder, is_ours, place, together};
