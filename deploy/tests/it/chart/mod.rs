//! What Helm renders of the chart by its values: what each adds, that wrong ones are refused, that no namespace but the
//! release's is named, and that `deploy/manifests` is what it renders.
//!
//! The tests that render are ignored: `make chart` runs them, with Helm and kustomize from `testing/e2e/go`.

mod claims;
mod files;
mod kept;
mod monitoring;
mod namespaces;
mod nodes;
mod others;
mod parts;
mod render;
mod values;
