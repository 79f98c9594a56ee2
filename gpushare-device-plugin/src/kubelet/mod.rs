//! The kubelet's device plugin interface: [`service`] answers its calls, [`session`] registers with it.

pub mod devices;
pub mod service;
pub mod session;
