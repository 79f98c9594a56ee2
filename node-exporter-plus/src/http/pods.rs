//! The page of `/v1/pods` as bytes, rendered at most once in [`VALID`].
//!
//! Invariant: the node's control groups are read at most once in that time, for any number of requests.

use std::path::PathBuf;
use std::time::Duration;

use axum::body::Bytes;

use crate::pods::{CgroupError, read};
use crate::render::pods;
use crate::series::{Moment, Now};

/// The time for which a page is served. A page of 110 pods takes reads of 330 files, and some milliseconds.
const VALID: Duration = Duration::from_secs(5);

/// The newest page, or why there is none.
#[derive(Debug)]
pub(super) struct PodsPage {
    /// The mount point of the control groups.
    cgroupfs: PathBuf,
    rendered: Option<(Moment, Result<Bytes, CgroupError>)>,
}

impl PodsPage {
    /// No page yet.
    pub(super) fn new(cgroupfs: PathBuf) -> Self {
        Self { cgroupfs, rendered: None }
    }

    /// The page at `now`, at most [`VALID`] old.
    pub(super) fn get(&mut self, now: Now) -> Result<Bytes, CgroupError> {
        if let Some((at, page)) = &self.rendered
            && now.boot.since(*at) < VALID
        {
            return page.clone();
        }
        // Boxed, the text has no spare capacity.
        let page = read(&self.cgroupfs)
            .map(|usages| Bytes::from(pods(&usages, now.wall).into_boxed_str().into_boxed_bytes()));
        self.rendered.insert((now.boot, page)).1.clone()
    }
}
