//! The audit: the periodic comparison of claims, the kubelet's records and the processes on the GPUs.
//!
//! [`compare`] and [`limits`] find contradictions ([`finding`]), [`watch`] repairs some of them and reports the rest.
//!
//! Invariant: missing data is no finding. A finding counts once two audits in a row have it, since its inputs are not
//! read at the same moment.

pub(crate) mod compare;
mod finding;
pub(crate) mod limits;
mod report;
pub(crate) mod watch;

use finding::{AffectedPod, Finding, Findings, Kind};
