//! Images, manifests and configuration; this crate holds the tests of them, and what writes the documents as a book.
//!
//! `Dockerfile` packs the images on what `runtime.lock` names, `chart/` is for Helm and the only source of the objects,
//! `manifests/` is what Helm renders from it, and `krew/` is for the plugin of kubectl. The tests parse all of it as a
//! cluster does: with each program's own flags, the policy's parser and Kubernetes' types. They also hold the documents
//! to the code.

pub mod book;

use std::path::Path;

/// The folder `deploy/` of this source tree.
#[must_use]
pub fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
