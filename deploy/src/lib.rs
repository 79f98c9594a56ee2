//! Images, manifests and configuration, and the tests that prove them.
//!
//! What is deployed lies beside this file as an operator reads it: `Dockerfile`, `base/` and `components/` for
//! kustomize, and `scheduler/` for kube-scheduler. The tests run all of it through the parsers that will meet it in
//! a cluster: each program's own flags, the policy, Kubernetes' types, and the script on kubeadm's own manifest.

use std::path::Path;

/// The folder with everything that is deployed, in this source tree.
#[must_use]
pub fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
