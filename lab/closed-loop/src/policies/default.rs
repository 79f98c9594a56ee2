//! kube-scheduler alone: no reading of a node counts.

use super::{Hook, Policy};

/// Knows of nothing but requests.
pub(super) struct Default;

impl Policy for Default {
    fn hook(&self) -> Hook {
        Hook::Plugin { weight: 0 }
    }
}
