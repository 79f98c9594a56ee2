//! What kube-scheduler does by itself, found by letting it: a second cluster inside this process has the
//! same nodes and is given the same pods, and its scheduler asks nobody. So each of its choices counts for
//! the next, as requests and GPU memory do.
//!
//! Nothing runs there, and of cards nobody there knows: whether a pod would have had one is reckoned here, and
//! in its favour. Each takes the fullest card that has room, and one that finds none leaves all as they are.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use sim::scheduler::{Decision, Scheduler, SchedulerConfig};
use sim::{PODS, Sim};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::evidence::{demand, is_daemon, reading, text};
use crate::fleet::{CARD_MIB, FLEET, UNIT_MIB};
use crate::loads::{LIMIT, Loads};

/// Where a pod goes by requests alone; `None` where it goes nowhere. By UID.
pub(crate) type Choices = BTreeMap<String, Option<Choice>>;

/// A node, as it was when it was chosen.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Choice {
    pub(crate) node: String,
    /// Its processors' load.
    pub(crate) cpu: Option<f64>,
    /// What is wrong with it.
    pub(crate) fault: Option<Fault>,
}

/// What is wrong with a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Overloaded,
    MemoryFull,
    NoCard,
}

/// The second cluster. Dropping it ends it.
pub(crate) struct Alone {
    sim: Sim,
    _scheduler: Scheduler,
    loads: Loads,
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    choices: Choices,
    cards: Cards,
}

impl Alone {
    /// Starts it, empty, with what nodes really carry. What its scheduler decides goes to the receiver, and
    /// from there to [`Self::decided`].
    ///
    /// # Errors
    /// When no port can be had.
    pub(crate) async fn start(loads: Loads) -> io::Result<(Self, UnboundedReceiver<Decision>)> {
        let sim = Sim::start().await?;
        let nobody = SchedulerConfig::default();
        let (scheduler, decisions) = Scheduler::start(&sim, nobody)?;
        let books = Mutex::default();
        Ok((Self { sim, _scheduler: scheduler, loads, books }, decisions))
    }

    /// A node is there, or has changed.
    pub(crate) fn node_applied(&self, node: &Value) {
        self.sim.put(node.clone());
    }

    /// A pod is there, or has changed: only how it came is of interest here.
    pub(crate) fn pod_applied(&self, pod: &Value) {
        if self.pod(uid(pod)).is_none() {
            self.sim.put(pod.clone());
        }
    }

    /// A pod is gone.
    pub(crate) fn pod_gone(&self, pod: &Value) {
        let meta = &pod["metadata"];
        self.sim.delete(PODS, text(&meta["namespace"]), text(&meta["name"]));
        self.books().cards.release(uid(pod));
    }

    /// The scheduler here has decided.
    pub(crate) fn decided(&self, decision: &Decision) {
        let Some(pod) = self.pod(&decision.uid) else { return };
        let choice = decision.outcome.as_ref().ok().map(|node| self.choice(&pod, node));
        self.books().choices.insert(decision.uid.clone(), choice);
    }

    /// Every choice so far.
    pub(crate) fn choices(&self) -> Choices {
        self.books().choices.clone()
    }

    fn choice(&self, pod: &Value, node: &str) -> Choice {
        let (cpu, memory) = self.load(node);
        let over = |load: Option<f64>| load.is_some_and(|load| load > LIMIT);
        let has_card = self.books().cards.take(uid(pod), node, demand(pod));
        let fault = match () {
            // It has no other node.
            () if is_daemon(pod) => None,
            () if over(cpu) => Some(Fault::Overloaded),
            () if over(memory) => Some(Fault::MemoryFull),
            () => (!has_card).then_some(Fault::NoCard),
        };
        Choice { node: node.to_owned(), cpu, fault }
    }

    /// Of processors and memory: the truth, or of this machine what is annotated.
    fn load(&self, node: &str) -> (Option<f64>, Option<f64>) {
        let object = self.sim.node(node).unwrap_or_default();
        match self.loads.now(node) {
            Some(load) => (Some(load.cpu), Some(load.memory)),
            None => (reading(&object, "cpu_usage_active"), reading(&object, "mem_usage_active")),
        }
    }

    fn pod(&self, uid_: &str) -> Option<Value> {
        self.sim.list(PODS).into_iter().find(|pod| uid(pod) == uid_)
    }

    // Each change is a single insertion or removal.
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn uid(pod: &Value) -> &str {
    text(&pod["metadata"]["uid"])
}

/// Which pod has how many units of which node's card, by UID.
#[derive(Debug, Default)]
struct Cards(BTreeMap<String, (String, usize, u64)>);

impl Cards {
    /// Puts a pod on the fullest card that has room; tells whether there was any.
    fn take(&mut self, uid: &str, node: &str, units: u64) -> bool {
        let cards = FLEET.iter().find(|plan| plan.name == node).map_or(0, |plan| plan.cards);
        let free = |card: &usize| (CARD_MIB / UNIT_MIB).saturating_sub(self.used(node, *card));
        let fullest = (0..cards).filter(|card| free(card) >= units).min_by_key(free);
        if let Some(card) = fullest {
            self.0.insert(uid.to_owned(), (node.to_owned(), card, units));
        }
        fullest.is_some() || units == 0
    }

    fn used(&self, node: &str, card: usize) -> u64 {
        let here = self.0.values().filter(|(on, nth, _)| on == node && *nth == card);
        here.map(|(.., units)| units).sum()
    }

    fn release(&mut self, uid: &str) {
        self.0.remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::GPU_MEM;
    use crate::pods::{gpu, plain};

    fn node(name: &str, cpus: u32, gpu: u32, load: &str) -> Value {
        let node = sim::node(name).with("cpu", cpus).with("pods", 110).with(GPU_MEM, gpu);
        let mut node: Value = node.annotation("cpu_usage_active", load).into();
        node["status"]["allocatable"]["memory"] = format!("{}Gi", cpus * 2).into();
        node
    }

    /// Chosen one after another, as node and fault.
    async fn chosen(nodes: Vec<Value>, pods: Vec<Value>) -> Vec<Option<(String, Option<Fault>)>> {
        let root = tempfile::tempdir().unwrap();
        let loads = Loads::new(root.path(), false).unwrap();
        let (alone, mut decisions) = Alone::start(loads).await.unwrap();
        nodes.iter().for_each(|node| alone.node_applied(node));
        let mut all = Vec::new();
        for mut pod in pods {
            pod["metadata"]["uid"] = pod["metadata"]["name"].clone();
            alone.pod_applied(&pod);
            let decision = decisions.recv().await.unwrap();
            alone.decided(&decision);
            let choice = alone.choices()[&decision.uid].clone();
            all.push(choice.map(|choice| (choice.node, choice.fault)));
        }
        all
    }

    #[tokio::test]
    async fn what_was_chosen_before_leaves_less_room() {
        let pods = (1..=4).map(|i| gpu(&format!("p{i}"), &[10])).collect();
        let on = |fault| Some(("gpu-1".to_owned(), fault));
        let expected = [on(None), on(None), on(Some(Fault::NoCard)), None];
        assert_eq!(chosen(vec![node("gpu-1", 32, 32, "0.2,now")], pods).await, expected);
    }

    #[tokio::test]
    async fn an_overload_is_not_seen_and_requests_are() {
        let nodes = vec![node("a", 2, 0, "0.9,now"), node("b", 1, 0, "0.1,now")];
        let web = (1..=3).map(|i| plain(&format!("w{i}"))).collect();
        let found = chosen(nodes, web).await;
        assert_eq!(found[0], Some(("a".to_owned(), Some(Fault::Overloaded))));
        // The third goes where there is room.
        assert!(found.contains(&Some(("b".to_owned(), None))), "{found:?}");
    }

    #[tokio::test]
    async fn a_node_that_hides_its_overload_is_overloaded() {
        let pods = vec![plain("w")];
        let expected = [Some(("cpu-2".to_owned(), Some(Fault::Overloaded)))];
        assert_eq!(chosen(vec![node("cpu-2", 32, 0, "0.03,now")], pods).await, expected);
    }

    #[test]
    fn a_pod_takes_the_fullest_card_that_has_room_until_it_is_gone() {
        let mut cards = Cards::default();
        let mut take = |uid: &str, units| cards.take(uid, "gpu-1", units);
        // One card is full, the other has 7 left.
        assert!(take("a", 9) && take("b", 9) && take("c", 7));
        assert!(!take("d", 8));
        cards.release("b");
        assert!(cards.take("d", "gpu-1", 16));
    }
}
