//! The learned use of workloads, from observations of their pods.
//!
//! A [`Learner`] keeps histograms of each workload's use and use by request. Newer observations weigh more: an
//! observation's weight halves with each [`Limits::half_life`].
//!
//! Invariants: the learned use of a workload follows from observations of its own pods, or of pods of the same
//! controller or shape with the best known template (most pod-minutes, where older ones count less), so a new template,
//! for example of a pod with a forged owner, neither represents nor replaces the others; memory is bounded for any
//! observations; a workload is dropped for one of another namespace only while its own namespace has more than an equal
//! part of the room, and the other has less.
//!
//! # Examples
//!
//! ```
//! use jiff::{SignedDuration, Timestamp};
//! use placement::learning::Learner;
//! use placement::resources::{PerResource, PodResources};
//! use placement::workload::WorkloadId;
//!
//! let mut learner = Learner::default();
//! let web = WorkloadId { namespace: "shop".into(), kind: "Deployment".into(), name: "web".into(), template: 1 };
//! let minute = SignedDuration::from_mins(1);
//! let half_a_core = PerResource { cpu: Some(0.5), memory: None };
//! let mut now = Timestamp::UNIX_EPOCH;
//! for _ in 0..6 {
//!     now += minute;
//!     learner.observe(&web, &PodResources::default(), half_a_core, minute, now);
//! }
//! let learned = learner.learned(&web).and_then(|learned| learned.cpu);
//! assert!(learned.is_some_and(|cpu| (cpu.amount.p90 - 0.5).abs() < 0.02));
//! // There are no observations of memory, so its use is unknown.
//! assert!(learner.learned(&web).is_some_and(|learned| learned.memory.is_none()));
//! ```

mod decaying;
mod learner;
mod usage;

pub use learner::{Learned, Learner, Limits, Snapshot, Stats};
