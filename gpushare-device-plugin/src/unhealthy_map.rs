//! The ConfigMap `unhealthy-gpu-<node>`, in which Aliyun's gpushare lists the indexes of GPUs that take no pods
//! (`data.gpus: "0,2"`): GPUs that other programs list there take no pods, and this plugin adds the GPUs that it
//! finds unhealthy or that operators have cordoned, for Aliyun's extender.
//!
//! Invariants: an index that another program listed is never removed; an annotation has the indexes of this plugin. A
//! list that does not parse is not changed, and the last good one stays in force: Aliyun's extender reads malformed
//! text as GPU 0.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cluster::{CallError, ConfigMapFacts, Event, Events};
use futures::StreamExt;
use placement::names::{Names, aliyun};
use placement::units::NodeName;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::gpus::{Gpus, Unhealthy};

/// Pause before a failed write is retried.
const RETRY_PAUSE: Duration = Duration::from_secs(5);
/// Pause after a write, in which its own watch event arrives.
const WRITE_PAUSE: Duration = Duration::from_secs(1);
/// Time for one write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest list that is read, in bytes: more GPUs than any machine has.
const MAX_LIST: usize = 512;

/// Follows and writes the ConfigMap of this node.
pub(crate) struct UnhealthyMap {
    /// The API server's client.
    pub client: cluster::Client,
    /// The ConfigMap's namespace.
    pub namespace: String,
    /// This node.
    pub node: NodeName,
    /// Annotation names.
    pub names: Names,
    /// Its GPUs.
    pub gpus: watch::Receiver<Arc<Gpus>>,
    /// Publishes the indexes that other programs list.
    pub unhealthy_indexes: watch::Sender<BTreeSet<u32>>,
}

/// A list that does not parse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no list of GPU indexes as `0,2`")]
pub(crate) struct NotAList(String);

/// A write of the ConfigMap: the whole list, and this plugin's part of it.
#[derive(Debug, PartialEq, Eq)]
struct Write {
    gpus: Option<String>,
    ours: Option<String>,
}

/// The indexes of a list: whole numbers with commas between them, spaces around them allowed; an empty text is none.
///
/// # Errors
/// If a part is no index, or the list is too long.
pub(crate) fn indexes(text: &str) -> Result<BTreeSet<u32>, NotAList> {
    parse(text).ok_or_else(|| NotAList(text.chars().take(64).collect()))
}

fn parse(text: &str) -> Option<BTreeSet<u32>> {
    if text.len() > MAX_LIST {
        return None;
    }
    if text.trim().is_empty() {
        return Some(BTreeSet::new());
    }
    text.split(',').map(|part| part.trim().parse().ok()).collect()
}

fn list(indexes: &BTreeSet<u32>) -> Option<String> {
    let texts: Vec<String> = indexes.iter().map(u32::to_string).collect();
    if texts.is_empty() { None } else { Some(texts.join(",")) }
}

/// The indexes of GPUs that are unhealthy or cordoned, except GPUs that are only listed in the ConfigMap. An index
/// that a healthy GPU also has is left out.
fn faulty(gpus: &Gpus) -> BTreeSet<u32> {
    let mut healthy = BTreeSet::new();
    let mut faulty = BTreeSet::new();
    for gpu in gpus.iter() {
        match gpu.unhealthy {
            None | Some(Unhealthy::Listed) => healthy.insert(gpu.index),
            Some(_) => faulty.insert(gpu.index),
        };
    }
    &faulty - &healthy
}

/// The indexes that other programs list, and the write for `faulty` GPUs; `None` if the ConfigMap is up to date.
fn compare(
    found: Option<&ConfigMapFacts>,
    mark: &str,
    faulty: &BTreeSet<u32>,
) -> Result<(BTreeSet<u32>, Option<Write>), NotAList> {
    let text = found.and_then(|found| found.data.get(aliyun::UNHEALTHY_GPUS));
    let marked = found.and_then(|found| found.annotations.get(mark));
    let all = indexes(text.map_or("", String::as_str))?;
    // Only this plugin writes the mark. A mark that does not parse removes no index.
    let before = marked.and_then(|text| indexes(text).ok()).unwrap_or_default();
    let others: BTreeSet<u32> = all.difference(&before).copied().collect();
    let ours: BTreeSet<u32> = faulty.difference(&others).copied().collect();
    let wanted: BTreeSet<u32> = others.union(&ours).copied().collect();
    let as_it_is = wanted == all && ours == before && (marked.is_some() || ours.is_empty());
    let write = (!as_it_is).then(|| Write { gpus: list(&wanted), ours: list(&ours) });
    Ok((others, write))
}

impl UnhealthyMap {
    /// The ConfigMap's name.
    pub(crate) fn name(node: &NodeName) -> String {
        format!("{}{node}", aliyun::UNHEALTHY_GPUS_MAP)
    }

    /// Follows `events` of the ConfigMap until the shutdown.
    pub(crate) async fn run(mut self, events: Events<ConfigMapFacts>, shutdown: daemon::Shutdown) {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.follow(events) => {}
        }
    }

    async fn follow(&mut self, mut events: Events<ConfigMapFacts>) {
        let mut found: Option<Option<ConfigMapFacts>> = None;
        let mut written = true;
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Event::Listed(all)) => found = Some(all.into_iter().next()),
                    Some(Event::Applied(map)) => found = Some(Some(map)),
                    Some(Event::Gone(_)) => found = Some(None),
                    Some(Event::Listing) => {}
                    None => return,
                },
                changed = self.gpus.changed() => if changed.is_err() { return },
                () = sleep(RETRY_PAUSE), if !written => {}
            }
            if let Some(found) = &found {
                written = self.reconcile(found.as_ref()).await;
            }
        }
    }

    /// Writes the ConfigMap if it differs. Returns false if the write failed.
    async fn reconcile(&self, found: Option<&ConfigMapFacts>) -> bool {
        let (faulty, are_known) = {
            let gpus = self.gpus.borrow();
            (faulty(&gpus), !gpus.is_empty())
        };
        let mark = self.names.written_gpus();
        match compare(found, &mark, &faulty) {
            Ok((others, write)) => {
                daemon::publish(&self.unhealthy_indexes, others);
                match write {
                    // The list does not change before the first GPUs are found.
                    Some(write) if are_known => self.write(found, &mark, &write).await,
                    _ => true,
                }
            }
            Err(error) => {
                tracing::warn!(
                    namespace = self.namespace,
                    "ConfigMap {}, data.{}: {error}; the last good list stays in force",
                    Self::name(&self.node),
                    aliyun::UNHEALTHY_GPUS
                );
                true
            }
        }
    }

    async fn write(&self, found: Option<&ConfigMapFacts>, mark: &str, write: &Write) -> bool {
        let name = Self::name(&self.node);
        let text = (aliyun::UNHEALTHY_GPUS, write.gpus.as_deref());
        let mark = (mark, write.ours.as_deref());
        let place = (self.namespace.as_str(), name.as_str());
        let written =
            cluster::write_config_map(&self.client, place, found, text, mark, WRITE_TIMEOUT).await;
        sleep(WRITE_PAUSE).await;
        match written {
            // After a conflict the watch shows the other program's write.
            Ok(()) | Err(CallError::Conflict(_)) => true,
            Err(error) => {
                tracing::warn!("cannot write ConfigMap {name}, trying again: {error}");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: &str = "plimsoll.dev/written-gpus";

    fn map(gpus: &str, ours: Option<&str>) -> ConfigMapFacts {
        let mut map = ConfigMapFacts::default();
        map.data.insert("gpus".to_owned(), gpus.to_owned());
        map.annotations.extend(ours.map(|ours| (MARK.to_owned(), ours.to_owned())));
        map
    }

    type Texts = Option<(Option<String>, Option<String>)>;

    fn compared(found: Option<&ConfigMapFacts>, faulty: &[u32]) -> (Vec<u32>, Texts) {
        let faulty = faulty.iter().copied().collect();
        let (others, write) = compare(found, MARK, &faulty).unwrap();
        (others.into_iter().collect(), write.map(|write| (write.gpus, write.ours)))
    }

    fn texts(gpus: &str, ours: &str) -> Texts {
        Some((some(gpus), some(ours)))
    }

    fn some(text: &str) -> Option<String> {
        if text.is_empty() { None } else { Some(text.to_owned()) }
    }

    #[test]
    fn what_others_list_is_honoured_and_stays() {
        assert_eq!(compared(Some(&map("0, 2", None)), &[]), (vec![0, 2], None));
        assert_eq!(compared(Some(&map("0,2", None)), &[1]), (vec![0, 2], texts("0,1,2", "1")));
        assert_eq!(compared(Some(&map("0,1,2", Some("1"))), &[1]), (vec![0, 2], None));
        assert_eq!(compared(Some(&map("0,1,2", Some("1"))), &[]), (vec![0, 2], texts("0,2", "")));
        // A GPU that both list stays in the other program's part.
        assert_eq!(compared(Some(&map("0", None)), &[0]), (vec![0], None));
    }

    #[test]
    fn nothing_is_written_for_healthy_gpus_and_the_last_index_takes_the_list_away() {
        assert_eq!(compared(None, &[]), (vec![], None));
        assert_eq!(compared(None, &[3]), (vec![], texts("3", "3")));
        // Aliyun's extender reads an empty list as GPU 0.
        assert_eq!(compared(Some(&map("3", Some("3"))), &[]), (vec![], texts("", "")));
    }

    #[test]
    fn nonsense_is_an_error_and_never_gpu_0() {
        for text in ["a", "0,", ",", "0;1", "-1", "0x1", "4294967296"] {
            assert!(indexes(text).is_err(), "{text}");
        }
        assert!(indexes(&"1,".repeat(400)).is_err());
        assert_eq!(indexes(" "), Ok(BTreeSet::new()));
        assert!(compare(Some(&map("0,x", None)), MARK, &BTreeSet::new()).is_err());
    }
}
