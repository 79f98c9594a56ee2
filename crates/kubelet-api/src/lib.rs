//! The kubelet's gRPC interfaces: what a device plugin serves and calls, and what a kubelet does.
//!
//! Generated from `proto/` and checked in, so that a build needs no protoc (`tests/generated.rs`
//! proves it fresh). The real plugin and the stand-in kubelet speak through the same code.

#![expect(missing_docs, reason = "generated")]

/// Device plugin and registration.
#[rustfmt::skip]
#[path = "gen/v1beta1.rs"]
pub mod v1beta1;

/// The kubelet's record of who holds what.
#[rustfmt::skip]
#[path = "gen/v1.rs"]
pub mod podresources;
