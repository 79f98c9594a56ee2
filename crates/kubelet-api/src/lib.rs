//! The kubelet's gRPC interfaces: device plugins (`deviceplugin/v1beta1`) and the PodResources API (`podresources/v1`).
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
