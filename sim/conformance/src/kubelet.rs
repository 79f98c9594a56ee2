//! Facts about a kubelet: what a device plugin relies on, in the kubelet's own order and words.

mod plugin;
mod records;
mod rig;

pub use plugin::{Call, Ids, Orders, Plugin};
pub use records::{Held, Records, Seen};
pub use rig::RESOURCE;
