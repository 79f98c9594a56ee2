//! The chart says what the kustomization says, refuses wrong values, and names no namespace but its own.
//!
//! The tests that render are ignored: `make chart` runs them, with Helm and kustomize from `testing/e2e/go`.

mod equality;
mod files;
mod namespaces;
mod others;
mod render;
mod values;
