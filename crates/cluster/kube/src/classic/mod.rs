//! The classic path, for clusters without claims on devices (DRA): an extended resource, a device plugin and a scheduler
//! extender.
//!
//! ```text
//! GPUs ─► annotation of the node ─► extender: which node, which GPU ─► placement in another annotation of the node
//!                                                                              │ bind
//! pod ◄─ container engine ◄─ CDI spec of the slot ◄─ slice ◄─ lease ◄──────────┘ PreStartContainer
//! ```
//!
//! The kubelet knows nothing of GPUs here: it gives a pod any of the node's slots. Before the container starts, the plugin
//! asks the kubelet which pod has the slot, so nothing is guessed (docs/adr/0009). Where NVIDIA's device plugin allocates
//! the GPUs, pods of cantle's take them from it first (`reserve`, docs/adr/0012).

mod bind;
mod changes;
mod extender;
mod kubelet;
mod manager;
mod metrics;
mod node;
mod plugin;
mod quota;
mod record;
mod reserve;
mod wake;

pub use cantle_kube_model::classic::reserve::ReservationKind;
pub use extender::serve_extender;
pub use node::{PluginConfig, run};
