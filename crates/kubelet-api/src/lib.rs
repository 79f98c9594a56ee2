//! The kubelet's gRPC interfaces: device plugins (`deviceplugin/v1beta1`), the PodResources API (`podresources/v1`) and
//! drivers of dynamic resource allocation (`dra`, `dra-health`, `pluginregistration`).
//!
//! Generated from `proto/` and checked in, so that a build needs no protoc; `tests/it/generated.rs` proves that both
//! agree. The real device plugin and the stand-in kubelet of the tests speak through the same code.

#![expect(missing_docs, reason = "generated")]

/// The device plugin API: what a plugin serves, and the registration that the kubelet serves.
#[rustfmt::skip]
pub mod v1beta1;

/// The kubelet's records: which container of which pod holds which device ids.
#[rustfmt::skip]
pub mod podresources;

/// A driver of dynamic resource allocation, v1: what it prepares for a claim, and undoes.
#[rustfmt::skip]
pub mod dra_v1;

/// The same as `dra_v1` for older kubelets, without the id of a share.
#[rustfmt::skip]
pub mod dra_v1beta1;

/// The stream in which such a driver tells how its devices are.
#[rustfmt::skip]
pub mod dra_health;

/// How the kubelet asks a plugin, at the socket in its registration folder, what it is.
#[rustfmt::skip]
pub mod plugin_registration;
