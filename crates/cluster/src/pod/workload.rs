//! Which workload a pod belongs to.
//!
//! Invariant: the namespace is the pod's own, which the API server guarantees. A pod's author may write the rest. So no
//! pod belongs to a workload of another namespace.

use std::sync::Arc;

use placement::names::limits;
use placement::workload::WorkloadId;

use super::{Container, Pod};

/// The label by which a Deployment distinguishes its ReplicaSets.
const TEMPLATE_HASH: &str = "pod-template-hash";

/// Digits at the end of the name of a CronJob's Job: the minute that it was scheduled for, since 1970.
const MIN_MINUTE_DIGITS: usize = 8;

impl Pod {
    /// Its controller and template; `None` if it has no controller, or if that is its node, as with a static pod.
    pub fn workload(&self) -> Option<WorkloadId> {
        let owner = self.metadata.owners.iter().find(|owner| owner.controller)?;
        let (kind, name) = self.top_controller(&owner.kind, &owner.name);
        // The API server limits the length of neither.
        let fits = (1..=limits::LABEL).contains(&kind.len())
            && (1..=limits::NAME).contains(&name.len())
            && kind != "Node";
        fits.then(|| WorkloadId {
            namespace: Arc::from(self.namespace()),
            kind: Arc::from(kind),
            name: Arc::from(name),
            template: self.template(),
        })
    }

    /// The Deployment of a ReplicaSet and the CronJob of a Job, as far as these follow from the names.
    fn top_controller<'a>(&self, kind: &'a str, name: &'a str) -> (&'a str, &'a str) {
        let parent = match kind {
            "ReplicaSet" => self.deployment_of(name).map(|name| ("Deployment", name)),
            "Job" => cron_job_of(name).map(|name| ("CronJob", name)),
            _ => None,
        };
        parent.filter(|(_, name)| !name.is_empty()).unwrap_or((kind, name))
    }

    /// The name of the Deployment that created a ReplicaSet: `NAME-HASH`.
    fn deployment_of<'a>(&self, replica_set: &'a str) -> Option<&'a str> {
        let hash = self.metadata.label(TEMPLATE_HASH).filter(|hash| !hash.is_empty())?;
        replica_set.strip_suffix(hash)?.strip_suffix('-')
    }

    /// A hash of the names, images, commands and arguments of the containers that run together. Requests are left out,
    /// so that learned use is kept if only requests change.
    fn template(&self) -> u64 {
        let mut hash = Fnv::default();
        for Container { name, image, command, args, .. } in self.running() {
            hash.text(name);
            hash.text(image.as_deref().unwrap_or_default());
            for words in [command, args] {
                hash.number(words.len());
                words.iter().for_each(|word| hash.text(word));
            }
        }
        hash.0
    }
}

/// The name of the CronJob that created a Job: `NAME-MINUTE`.
fn cron_job_of(job: &str) -> Option<&str> {
    let (name, minute) = job.rsplit_once('-')?;
    let is_minute =
        minute.len() >= MIN_MINUTE_DIGITS && minute.bytes().all(|byte| byte.is_ascii_digit());
    is_minute.then_some(name)
}

/// FNV-1a with 64 bits: the same in every release, unlike the standard library's hashers.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn number(&mut self, number: usize) {
        self.bytes(&(number as u64).to_le_bytes());
    }

    /// Hashes the length before the text, so that `ab`, `c` and `a`, `bc` differ.
    fn text(&mut self, text: &str) {
        self.number(text.len());
        self.bytes(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_fnv_1a() {
        // The test vectors of the draft, draft-eastlake-fnv.
        for (text, wanted) in [
            ("", 0xcbf2_9ce4_8422_2325),
            ("a", 0xaf63_dc4c_8601_ec8c),
            ("foobar", 0x8594_4171_f739_67e8),
        ] {
            let mut hash = Fnv::default();
            hash.bytes(text.as_bytes());
            assert_eq!(hash.0, wanted, "{text}");
        }
    }
}
