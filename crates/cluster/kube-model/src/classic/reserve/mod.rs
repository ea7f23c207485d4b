//! Coexistence with NVIDIA's device plugin: a GPU serves slices only while a pod of cantle's holds it as
//! `nvidia.com/gpu`, so no other scheduler can allocate it (docs/adr/0012).

mod pod;
mod rules;
#[cfg(test)]
mod tests;

pub use pod::{ReservationKind, node_of};
pub use rules::{
    Devices, HeldDevice, Placed, ReservationActions, SeenPod, best, has_room, holder, left_by_others, place,
    settle, together,
};
