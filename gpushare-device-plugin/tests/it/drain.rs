//! The MPS clients of a pod are to be terminated before its processes are killed: what the plugin writes for the
//! container beside MPS's control daemon, and when.

use std::fs::File;
use std::io::Read as _;

use jiff::{Timestamp, ToSpan as _};
use rustix::fs::{OFlags, fcntl_setfl};
use serde_json::json;
use sim::{PODS, pod};

use crate::processes::id;
use crate::rig::{A, RESOURCE, Rig, until};

const P: &str = "11111111-1111-4111-8111-111111111111";
const Q: &str = "22222222-2222-4222-8222-222222222222";

/// A node with MPS, its plugin registered, and the reader of the pipe.
struct Node {
    rig: Rig,
    reader: File,
}

impl Node {
    async fn new() -> Self {
        let rig = Rig::new(&[(A, 8)]).await;
        let reader = rig.host_pipe("mps/pipes/drain/pods");
        fcntl_setfl(&reader, OFlags::RDWR | OFlags::NONBLOCK).unwrap();
        Self { rig, reader }
    }

    /// Runs a pod that asks for two units.
    async fn run(&self, name: &str, uid: &str) {
        let asks = pod(name).uid(uid).asking(RESOURCE, 2);
        self.rig.run(asks, A).await.unwrap();
        self.rig.sim.change(PODS, "default", name, |pod| {
            pod["status"]["containerStatuses"] = json!([{
                "name": "main",
                "containerID": format!("containerd://{}", id("a")),
                "state": {"running": {}},
            }]);
        });
        self.rig.marked(name).await;
    }

    /// Begins the deletion of a pod.
    fn delete(&self, name: &str, seconds: i64) {
        let at = (Timestamp::now() + seconds.seconds()).to_string();
        self.rig.sim.change(PODS, "default", name, |pod| {
            pod["metadata"]["deletionTimestamp"] = json!(at);
            pod["metadata"]["deletionGracePeriodSeconds"] = json!(seconds);
        });
    }

    /// Waits for the first request, and returns the UID in it.
    async fn asked(&self) -> String {
        let mut all = String::new();
        let reached = async {
            while !all.contains('\n') {
                let mut part = [0; 256];
                // An empty pipe is an error.
                if let Ok(length) = (&self.reader).read(&mut part) {
                    all.push_str(std::str::from_utf8(&part[..length]).unwrap());
                }
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(crate::rig::PATIENCE, reached).await.expect("a request");
        all.lines().next().unwrap().to_owned()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_pod_is_asked_for_within_its_grace_period_and_others_are_not() {
    let node = Node::new().await;
    node.run("q", Q).await;
    node.run("p", P).await;
    node.delete("q", 3600);
    node.delete("p", 2);
    assert_eq!(node.asked().await, P);
    node.rig.until_metric("plimsoll_gpu_mps_drains_total{result=\"asked\"}", 1.0).await;
    node.rig.until_metric("plimsoll_gpu_mps_drain", 1.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_deleted_by_force_or_ended_by_its_kubelet_is_asked_for_at_once() {
    let node = Node::new().await;
    node.run("p", P).await;
    node.rig.sim.delete(PODS, "default", "p");
    assert_eq!(node.asked().await, P);
    let node = Node::new().await;
    node.run("q", Q).await;
    node.rig.sim.change(PODS, "default", "q", |pod| {
        pod["status"]["conditions"] = json!([{
            "type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet",
        }]);
    });
    assert_eq!(node.asked().await, Q);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_due_while_the_plugin_was_down_is_asked_for_at_its_start() {
    let mut node = Node::new().await;
    // From the first on: a pod without a group that the kubelet does not list yet counts as ended.
    node.rig.processes(P, true);
    node.run("p", P).await;
    node.rig.stop_plugin().await;
    node.rig.sim.delete(PODS, "default", "p");
    node.rig.begin_plugin();
    assert_eq!(node.asked().await, P);
    // It still has its units: its processes run.
    until("it lingers", || node.rig.metric("plimsoll_gpu_lingering_pods") == 1.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nothing_reads_the_pipe_a_deletion_is_counted_as_failed() {
    let Node { rig, reader } = Node::new().await;
    drop(reader);
    rig.run(pod("p").uid(P).asking(RESOURCE, 2), A).await.unwrap();
    rig.marked("p").await;
    rig.sim.delete(PODS, "default", "p");
    rig.until_metric("plimsoll_gpu_mps_drains_total{result=\"failed\"}", 1.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_reports_whether_the_pipe_has_a_reader() {
    let Node { mut rig, reader } = Node::new().await;
    rig.restart_with(&[]).await;
    rig.gpus("a reader", |gpus| gpus[0]["mpsDrain"] == true).await;
    drop(reader);
    rig.gpus("no reader", |gpus| gpus[0]["mpsDrain"] == false).await;
}
