//! What lies in `deploy/` is what the programs, Kubernetes and the documents say it is.

mod flags;
mod images;
mod manifests;
mod policy;
mod rbac;
mod scheduler_config;
mod wiring;
mod workloads;
