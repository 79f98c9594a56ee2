//! Has CUDA contexts opened on the node's GPUs, as programs of pods do: NVML answers well for a GPU that none can use.
//!
//! `gpu-probe contexts`, in a container of its own, opens the contexts; [`client`] asks it, [`schedule`] says when and
//! what follows, [`watch`] does both.
//!
//! Invariant: only a context that CUDA refuses or does not open in time, twice in a row, closes a GPU. Whatever else
//! goes wrong changes nothing.

mod client;
mod schedule;
pub(crate) mod watch;
