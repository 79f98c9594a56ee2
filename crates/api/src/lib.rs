//! Every JSON that other programs read or write, typed in both directions.
//!
//! Each module owns one value: its types, its limits, and both directions of its codec. The schema of each is checked
//! in as `schema/<name>.schema.json`, an example as `tests/golden/<name>.json`; tests compare both with the code.
//!
//! Invariant: a text that is too long is refused before it is parsed, and lists and names are bounded, so that an
//! annotation costs bounded time and memory, even if a user wrote it. The types have no placement rules: `cluster` and
//! the device plugin convert them to `placement`'s own types.
//!
//! * [`gpus`]: node annotation `gpu-cards`.
//! * [`cordoned`]: node annotation `cordoned-gpus`, a list and no JSON.
//! * [`share`]: node annotation `gpu-share`.
//! * [`share_config`]: parameters of ResourceClaims and DeviceClasses.
//! * [`claim`]: pod annotation `gpu-claim`.
//! * [`per_container`]: pod annotations `gpu-card-count`, `gpu-cores`, `gpu-processes` and `gpu-mem-limit`.
//! * [`allocation`]: pod annotation `scheduler.framework.gpushare.allocation`.
//! * [`expected_use`]: pod annotation `expected-use`.
//! * [`inspect`]: the answer of `GET /gpushare-scheduler/inspect`.
//! * [`explain`]: the request and the answer of `POST /explain`.
//! * [`state`]: the answer of `GET /v1/state`, by columns.
//! * [`node`]: the answers of `GET /v1/nodes/NODE` and of `GET /v1/cards`.
//! * [`decisions`]: the answers of `GET /v1/decisions` and of `GET /v1/pending`.
//! * [`capacity`]: the request and the answer of `POST /v1/capacity`.
//! * [`simulate`]: the request and the answer of `POST /v1/simulate`.
//! * [`health`]: the answer of `GET /v1/health`, of every program.
//! * [`moves`]: the answer of `GET /v1/moves`.
//! * [`pods`]: the exporter's answer of `GET /v1/pods`.
//! * [`readings`]: the annotator's answer of `GET /v1/readings`, by columns.
//! * [`workloads`]: the annotator's answer of `GET /v1/workloads`.
//! * [`shadow`]: the answer of `GET /shadow`.
//! * [`policy_check`]: the answer of `plimsoll policy check --json` and of `GET /v1/policy`.
//! * [`stored`]: objects of Kubernetes, read although parts of them cannot be.
#![deny(missing_docs)]

pub mod allocation;
pub mod capacity;
pub mod claim;
pub mod cordoned;
pub mod decisions;
pub mod expected_use;
pub mod explain;
pub mod gpus;
pub mod health;
pub mod inspect;
mod json;
pub mod moves;
pub mod node;
pub mod per_container;
pub mod pods;
pub mod policy_check;
pub mod readings;
pub mod shadow;
pub mod share;
pub mod share_config;
pub mod simulate;
pub mod state;
pub mod stored;
pub mod workloads;

pub use json::JsonError;
