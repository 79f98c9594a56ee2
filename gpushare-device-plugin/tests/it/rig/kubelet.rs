//! The kubelet stand-in in a test. What fails or does not happen in time fails the test.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::time::Duration;

use sim::kubelet::{AdmitError, Answers, DeviceManager, PodSpec};
use tokio::time::timeout;

/// Time for anything that is waited for, on a machine that is busy with something else. Shorter than the usual minute
/// from one audit to the next, which finds again what the rest of the plugin misses.
pub const PATIENCE: Duration = Duration::from_secs(50);

/// A kubelet's device manager.
pub struct Kubelet(DeviceManager);

impl Deref for Kubelet {
    type Target = DeviceManager;

    fn deref(&self) -> &DeviceManager {
        &self.0
    }
}

impl DerefMut for Kubelet {
    fn deref_mut(&mut self) -> &mut DeviceManager {
        &mut self.0
    }
}

impl Kubelet {
    pub fn start(root: &Path, resource: &str) -> Self {
        Self(DeviceManager::start(root, resource).unwrap())
    }

    pub fn begin(&mut self) {
        self.0.begin().unwrap();
    }

    pub fn replace_registration(&mut self) {
        self.0.replace_registration().unwrap();
    }

    pub async fn registered(&self, count: usize) {
        timeout(PATIENCE, self.0.registered(count)).await.expect("a registration");
    }

    pub async fn written(&self, what: &str, holds: impl Fn(&BTreeSet<String>) -> bool) {
        timeout(PATIENCE, self.0.written(holds)).await.expect(what);
    }

    pub async fn devices(
        &self,
        what: &str,
        holds: impl Fn(&BTreeMap<String, bool>) -> bool,
    ) -> BTreeMap<String, bool> {
        timeout(PATIENCE, self.0.devices(holds)).await.expect(what)
    }

    pub async fn admit(&self, pod: PodSpec) -> Result<Answers, AdmitError> {
        self.0.admit(&pod).await
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        // The real one crashes then (kubernetes/kubernetes#95041).
        let vanished = self.0.vanished_ids();
        assert!(
            std::thread::panicking() || vanished.is_empty(),
            "taken off the list: {vanished:?}"
        );
    }
}
