//! The text in which a later process of this node finds the pods that were granted ids.

use placement::units::{PodUid, Units};
use serde::{Deserialize, Serialize};

use super::Records;
use super::pod_record::PodRecord;
use super::resource_claims::ClaimLedger;
use crate::pods::PodRef;

/// What an earlier process saved: pods that were granted ids, and ResourceClaims.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct SavedGrants {
    pods: Vec<SavedPod>,
    /// Files of earlier versions do not have them.
    #[serde(default)]
    resource_claims: ClaimLedger,
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedPod {
    uid: PodUid,
    namespace: String,
    name: String,
    ids: Vec<String>,
    peak: Units,
    exclusive: bool,
    /// Files of earlier versions do not have it.
    #[serde(default = "yes")]
    chosen: bool,
}

fn yes() -> bool {
    true
}

impl SavedPod {
    fn of(uid: &PodUid, record: &PodRecord) -> Self {
        Self {
            uid: uid.clone(),
            namespace: record.pod.namespace.clone(),
            name: record.pod.name.clone(),
            ids: record.ids.iter().map(ToString::to_string).collect(),
            peak: record.peak,
            exclusive: record.exclusive,
            chosen: record.chosen,
        }
    }
}

impl SavedGrants {
    /// Parses a text of [`Records::to_json`].
    ///
    /// # Errors
    /// If it is no such text.
    pub fn from_json(text: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(text)
    }
}

impl Records {
    /// The pods that may have processes, as the text that a later process of this node reads.
    pub fn to_json(&self) -> String {
        let mut pods: Vec<SavedPod> =
            self.holders().map(|(uid, record)| SavedPod::of(uid, record)).collect();
        pods.sort_by(|one, other| one.uid.cmp(&other.uid));
        // Strings, numbers and booleans only: serialisation cannot fail.
        let resource_claims = self.resource_claims.clone();
        serde_json::to_string(&SavedGrants { pods, resource_claims }).unwrap_or_default()
    }

    /// Adds the pods that an earlier process saved. Ids of an unknown form, from another version, are left out.
    pub fn add_saved(&mut self, saved: SavedGrants) {
        for pod in saved.pods {
            let record = self.pods.entry(pod.uid).or_insert_with(|| PodRecord {
                // The watch that this process begins shows the pod with its first list, if it still exists.
                seen: true,
                ..PodRecord::new(PodRef { namespace: pod.namespace, name: pod.name })
            });
            record.ids.extend(pod.ids.iter().filter_map(|id| id.parse().ok()));
            record.peak = record.peak.max(pod.peak);
            record.exclusive |= pod.exclusive;
            record.chosen |= pod.chosen;
        }
        for (uid, claim) in saved.resource_claims.iter() {
            if self.resource_claims.get(uid).is_none() {
                self.resource_claims.insert(uid.clone(), claim.clone());
            }
        }
        self.drop_ended();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{A, B, gpus, ids, simple, with_init};

    fn charged(records: &Records, pod: &str) -> Vec<(String, u32)> {
        let gpus = gpus(&[(A, 4), (B, 4)]);
        let (_, record) = records.holders().find(|(uid, _)| uid.as_str() == pod).unwrap();
        let charge = record.charge(&gpus).into_iter();
        charge.map(|(gpu, units)| (gpu.to_string(), units.0)).collect()
    }

    #[test]
    fn what_is_written_is_read_back_and_charged_alike() {
        let mut records = Records::default();
        records.grant(&simple("p", A, 2), "main", ids(["aaaaaaaa-0", "aaaaaaaa-1"]));
        records.grant(&with_init("init", B, 3, 1), "main", ids(["bbbbbbbb-0"]));
        let mut read = Records::default();
        read.add_saved(SavedGrants::from_json(records.to_json().as_bytes()).unwrap());
        assert_eq!(read.to_json(), records.to_json());
        assert_eq!(charged(&read, "p"), [(A.to_owned(), 2)]);
        assert_eq!(charged(&read, "init"), [(B.to_owned(), 3)], "its peak");
    }

    #[test]
    fn a_text_that_is_none_of_ours_is_an_error() {
        for text in ["", "[]", "{}", r#"{"pods":[{}]}"#] {
            assert!(SavedGrants::from_json(text.as_bytes()).is_err(), "{text}");
        }
    }
}
