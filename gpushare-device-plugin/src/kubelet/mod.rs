//! The kubelet's device plugin interface: [`service`] answers its calls, [`session`] registers with it.

pub(crate) mod devices;
pub(crate) mod service;
pub(crate) mod session;
