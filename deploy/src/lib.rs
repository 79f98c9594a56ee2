//! Images, manifests and configuration; this crate holds the tests of them, and what writes the documents as a book.
//!
//! `Dockerfile` packs the images on what `runtime.lock` names, `base/` and `components/` are for kustomize, `chart/` is
//! for Helm and says the same, `registry/` sets where the images are, `krew/` is for the plugin of kubectl, and
//! `scheduler/` for kube-scheduler. The tests parse all of it as a cluster does: with each program's own flags, the
//! policy's parser and Kubernetes' types. They also hold the documents to the code.

pub mod book;

use std::path::Path;

/// The folder `deploy/` of this source tree.
#[must_use]
pub fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
