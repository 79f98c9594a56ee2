//! A kubelet that is killed and started again, with a plugin of the test's own.

use std::path::Path;

use conformance::kubelet::{Behaviour, Plugin, PluginCall, Records};
use sim::kubelet::{Kubelet, KubeletSettings, PodKey, ProcessEvent};
use sim::{Sim, node, pod};
use tokio::sync::mpsc::{self, UnboundedReceiver};

const UNIT: &str = "example.com/unit";
const NODE: &str = "only";

struct World {
    sim: Sim,
    kubelet: Kubelet,
    plugin: Plugin,
    events: UnboundedReceiver<ProcessEvent>,
}

async fn world(root: &Path) -> World {
    let sim = Sim::start().await.unwrap();
    sim.put(node(NODE));
    let (sender, events) = mpsc::unbounded_channel();
    let settings = KubeletSettings {
        node: NODE.to_owned(),
        root: root.to_owned(),
        cdi_dir: root.join("cdi"),
        resource: UNIT.to_owned(),
    };
    let kubelet = Kubelet::start(&sim, settings, sender).unwrap();
    let directory = kubelet.devices().plugin_dir();
    let records = kubelet.devices().records_socket();
    let mut plugin = Plugin::new(directory, Records::new(records, "default"), UNIT, 4);
    plugin.start().await.unwrap();
    let world = World { sim, kubelet, plugin, events };
    world.allocatable("4").await;
    world
}

impl World {
    async fn allocatable(&self, count: &str) {
        let wanted = format!("{count} allocatable of 4");
        let seen = self.sim.until(&wanted, |sim| {
            let status = &sim.node(NODE)?["status"];
            (status["allocatable"][UNIT] == count && status["capacity"][UNIT] == "4").then_some(())
        });
        seen.await.unwrap();
    }

    async fn phase(&self, name: &str, phase: &str) {
        self.phase_in("default", name, phase).await;
    }

    async fn phase_in(&self, namespace: &str, name: &str, phase: &str) {
        let wanted = format!("{name} {phase}");
        let seen = self.sim.until(&wanted, |sim| {
            (sim.pod(namespace, name)?["status"]["phase"] == phase).then_some(())
        });
        seen.await.unwrap();
    }

    fn started(&mut self) -> Vec<String> {
        let events = std::iter::from_fn(|| self.events.try_recv().ok());
        let started = events.filter_map(|event| match event {
            ProcessEvent::Started(process) => Some(process.pod),
            ProcessEvent::Ended { .. } => None,
        });
        started.collect()
    }
}

fn allocations(calls: &[PluginCall]) -> usize {
    calls.iter().filter(|call| matches!(call, PluginCall::Allocate { .. })).count()
}

#[tokio::test]
async fn pods_that_came_and_went_while_the_kubelet_was_down_are_admitted_and_removed() {
    let root = tempfile::tempdir().unwrap();
    let mut world = world(root.path()).await;
    for name in ["stays", "goes"] {
        world.sim.put(pod(name).asking(UNIT, 2).on(NODE));
        world.phase(name, "Running").await;
    }
    world.kubelet.kill().await;
    world.sim.delete(sim::PODS, "default", "goes");
    world.sim.put(pod("comes").asking(UNIT, 2).on(NODE));
    assert!(world.plugin.socket().exists());
    world.kubelet.begin().unwrap();
    assert!(!world.plugin.socket().exists());
    world.plugin.start().await.unwrap();
    // The devices of the removed pod count until all present pods are admitted.
    world.phase("comes", "Failed").await;
    world.sim.put(pod("next").asking(UNIT, 2).on(NODE));
    world.phase("next", "Running").await;
    assert_eq!(world.started(), ["stays", "goes", "next"]);
    assert_eq!(allocations(&world.plugin.calls()), 3);
    assert_eq!(world.kubelet.devices().ids("stays", "main").len(), 2);
    assert!(world.kubelet.devices().shared_ids().is_empty());
    world.allocatable("4").await;
}

#[tokio::test]
async fn a_pod_whose_allocate_was_cut_off_is_allocated_anew_and_starts_once() {
    let root = tempfile::tempdir().unwrap();
    let mut world = world(root.path()).await;
    let slow = std::time::Duration::from_secs(3600);
    world.plugin.set(Behaviour { delay: slow, ..Behaviour::default() });
    world.sim.put(pod("p").asking(UNIT, 4).on(NODE));
    world.plugin.called(|calls| allocations(calls) == 1).await;
    world.kubelet.kill().await;
    world.plugin.set(Behaviour::default());
    world.kubelet.begin().unwrap();
    world.plugin.start().await.unwrap();
    world.phase("p", "Running").await;
    assert_eq!(world.started(), ["p"]);
    assert_eq!(allocations(&world.plugin.calls()), 2);
}

#[tokio::test]
async fn pods_of_one_name_in_two_namespaces_are_two_pods() {
    let root = tempfile::tempdir().unwrap();
    let mut world = world(root.path()).await;
    for namespace in ["default", "other"] {
        world.sim.put(pod("same").in_namespace(namespace).asking(UNIT, 2).on(NODE));
        world.phase_in(namespace, "same", "Running").await;
    }
    assert_eq!(allocations(&world.plugin.calls()), 2);
    let one = ids(&world, "default");
    let other = ids(&world, "other");
    assert_eq!((one.len(), other.len(), one.is_disjoint(&other)), (2, 2, true));
    // After a restart the kubelet finds both, and the end of one leaves the other.
    world.kubelet.restart().await.unwrap();
    world.plugin.start().await.unwrap();
    world.sim.put(pod("last").on(NODE));
    world.phase("last", "Running").await;
    world.sim.delete(sim::PODS, "default", "same");
    world.sim.put(pod("next").asking(UNIT, 2).on(NODE));
    world.phase("next", "Running").await;
    assert_eq!(world.kubelet.devices().ids("next", "main"), one);
    assert_eq!(ids(&world, "other"), other);
    assert_eq!(world.started(), ["same", "same", "next"]);
}

fn ids(world: &World, namespace: &str) -> sim::kubelet::Ids {
    world.kubelet.devices().ids(PodKey::new(namespace, "same"), "main")
}
