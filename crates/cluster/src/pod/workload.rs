//! Which workload a pod belongs to.
//!
//! A controller that lasts names its pods' workload. What runs once has a new name in each run, as a CI's Job, or has
//! no controller at all. Its workload is named by what its pods look like: the kind of the controller, and the names,
//! images and requests of the containers.
//!
//! Invariants: the namespace is the pod's own, which the API server guarantees. A pod's author may write the rest. So
//! no pod belongs to a workload of another namespace. The workload is the same before the pod is bound and while it
//! runs.

use std::sync::Arc;

use placement::fnv;
use placement::names::limits;
use placement::workload::{SHAPE_MARK, WorkloadId};

use super::{Container, Pod};
use crate::quantity::{Quantities, amounts};

/// The labels by which controllers distinguish their ReplicaSets: `NAME-HASH`.
const TEMPLATE_HASHES: [(&str, &str); 2] =
    [("pod-template-hash", "Deployment"), ("rollouts-pod-template-hash", "Rollout")];

/// The label with the name of a Knative configuration. Its Deployments have a new name for each revision.
const KNATIVE_CONFIGURATION: &str = "serving.knative.dev/configuration";

/// Digits at the end of the name of a CronJob's Job: the minute that it was scheduled for, since 1970.
const MIN_MINUTE_DIGITS: usize = 8;

/// How the kinds end whose objects are made anew for each run: Job, PyTorchJob, TaskRun, EphemeralRunner, Workflow. A
/// Pod is the controller of Spark's executors.
const RUN_KINDS: [&str; 7] =
    ["Job", "Run", "Runner", "Workflow", "SparkApplication", "RayCluster", "Pod"];

/// A generated part of a name has at least so many letters if it has no digit: the API server and controllers append
/// five characters, none of them a vowel.
const MIN_GENERATED: usize = 5;

/// The longest readable part of a shape's name, in bytes.
const MAX_READABLE: usize = 100;

impl Pod {
    /// Its controller's kind and name: of a ReplicaSet its Deployment or Rollout, of a CronJob's Job the CronJob.
    /// `None` if it has no controller, or if that is its node, as with a static pod.
    pub fn controller(&self) -> Option<(&str, &str)> {
        let owner = self.metadata.owners.iter().find(|owner| owner.controller)?;
        let (kind, name) = self.top_controller(&owner.kind, &owner.name);
        // The API server limits the length of neither.
        let fits = (1..=limits::LABEL).contains(&kind.len())
            && (1..=limits::NAME).contains(&name.len())
            && kind != "Node";
        fits.then_some((kind, name))
    }

    /// Its workload; `None` if its controller is its node, or has a name that no object has.
    pub fn workload(&self) -> Option<WorkloadId> {
        let has_controller = self.metadata.owners.iter().any(|owner| owner.controller);
        let (kind, name) = if has_controller { self.controller()? } else { ("Pod", "") };
        let runs_once = kind != "CronJob" && RUN_KINDS.iter().any(|end| kind.ends_with(end));
        if !runs_once && name.contains(SHAPE_MARK) {
            return None;
        }
        let (name, template) = if runs_once {
            (self.shape(), self.run_template())
        } else {
            (name.to_owned(), self.template())
        };
        Some(WorkloadId {
            namespace: Arc::from(self.namespace()),
            kind: Arc::from(kind),
            name: Arc::from(name),
            template,
        })
    }

    /// The controller of a ReplicaSet or a Job, as far as it follows from names and labels.
    fn top_controller<'a>(&'a self, kind: &'a str, name: &'a str) -> (&'a str, &'a str) {
        let parent = match kind {
            "ReplicaSet" => self.owner_of_replica_set(name),
            "Job" => cron_job_of(name).map(|name| ("CronJob", name)),
            _ => None,
        };
        parent.filter(|(_, name)| !name.is_empty()).unwrap_or((kind, name))
    }

    fn owner_of_replica_set<'a>(&'a self, replica_set: &'a str) -> Option<(&'a str, &'a str)> {
        if let Some(name) = self.metadata.label(KNATIVE_CONFIGURATION) {
            return Some(("Configuration", name));
        }
        TEMPLATE_HASHES.iter().find_map(|(label, kind)| {
            let hash = self.metadata.label(label).filter(|hash| !hash.is_empty())?;
            Some((*kind, replica_set.strip_suffix(hash)?.strip_suffix('-')?))
        })
    }

    /// A hash of the names, images, commands and arguments of the containers that run together. Requests are left out,
    /// so that learned use is kept if only requests change.
    fn template(&self) -> u64 {
        let mut hash = Fnv::default();
        for Container { name, image, command, args, .. } in self.running() {
            hash.text(name);
            hash.text(image.as_deref().unwrap_or_default());
            for words in [command, args] {
                hash.number(words.len() as u64);
                words.iter().for_each(|word| hash.text(word));
            }
        }
        hash.0
    }

    /// The name of the workload of pods that run once: the first image's last part, [`SHAPE_MARK`], and a hash of the
    /// containers' names, of their images without tags, which may be commits, and of their requests. The kubelet's
    /// report of resources is left out, since there is none before the pod is bound.
    fn shape(&self) -> String {
        let mut hash = Fnv::default();
        for container in self.running() {
            hash.text(&container.name);
            hash.text(container.repository());
            hash.requests(&container.resources.requests);
        }
        hash.requests(&self.spec.resources.requests);
        let first = self.running().next().map(Container::repository).unwrap_or_default();
        let image = first.rsplit('/').next().unwrap_or_default();
        let readable = &image[..image.floor_char_boundary(MAX_READABLE)];
        format!("{readable}{SHAPE_MARK}{:016x}", hash.0)
    }

    /// What distinguishes pods of one shape: the pod's name, and the commands and arguments of its containers, without
    /// the parts that differ from run to run.
    fn run_template(&self) -> u64 {
        let object = &self.metadata.object;
        let generated_from = object.generate_name.as_deref().filter(|name| !name.is_empty());
        let mut hash = Fnv::default();
        hash.run_text(generated_from.unwrap_or(self.name()));
        for Container { command, args, .. } in self.running() {
            command.iter().chain(args.iter()).for_each(|word| hash.run_text(word));
        }
        hash.0
    }
}

impl Container {
    /// Its image without tag and digest.
    fn repository(&self) -> &str {
        let named = self.image.as_deref().unwrap_or_default();
        let image = named.split_once('@').map_or(named, |(image, _)| image);
        // A colon before the last slash is that of the registry's port.
        match image.rsplit_once(':') {
            Some((repository, tag)) if !tag.contains('/') => repository,
            _ => image,
        }
    }
}

/// The name of the CronJob that created a Job: `NAME-MINUTE`.
fn cron_job_of(job: &str) -> Option<&str> {
    let (name, minute) = job.rsplit_once('-')?;
    let is_minute =
        minute.len() >= MIN_MINUTE_DIGITS && minute.bytes().all(|byte| byte.is_ascii_digit());
    is_minute.then_some(name)
}

/// Whether a word of letters and digits may be another in the next run: it has a digit, as dates, numbers and hashes
/// have, or looks like the random end of a generated name.
fn differs_by_run(word: &str) -> bool {
    let is_vowel = |byte: u8| b"aeiouyAEIOUY".contains(&byte);
    word.bytes().any(|byte| byte.is_ascii_digit())
        || (word.len() >= MIN_GENERATED && !word.bytes().any(is_vowel))
}

/// The FNV-1a hash of several values.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(fnv::EMPTY)
    }
}

impl Fnv {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0 = fnv::extended(self.0, bytes);
    }

    fn number(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    /// Hashes the length before the text, so that `ab`, `c` and `a`, `bc` differ.
    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.bytes(text.as_bytes());
    }

    /// Hashes CPU and memory; one that is absent differs from all amounts.
    fn requests(&mut self, requests: &Quantities) {
        let requests = amounts(requests);
        for amount in [requests.cpu, requests.memory] {
            self.number(amount.map_or(u64::MAX, f64::to_bits));
        }
    }

    /// Hashes a text's words of ASCII letters and digits. Words in a row that [differ by run](differs_by_run) count as
    /// one, which is the same in all texts.
    fn run_text(&mut self, text: &str) {
        let mut before_differs = false;
        for word in text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty())
        {
            let differs = differs_by_run(word);
            if !differs {
                self.text(word);
            } else if !before_differs {
                self.text("#");
            }
            before_differs = differs;
        }
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
