//! The steps of the scenario, in their order.

use std::time::Duration;

use anyhow::ensure;
use jiff::Timestamp;
use serde_json::Value;
use sim::Fault;

use super::{BIG_POD, BIG_SIZE, Scenario, big_pod_waits_for_a_gpu, why_big_pod_waits};
use crate::args::Sabotage;
use crate::cluster::{Cluster, ExtenderProbe, exporter, plugin};
use crate::model::nodes::gpu_nodes;
use crate::model::objects::{asks_gpu, is_running, name};
use crate::model::pods::{daemon, gpu, gpu_in_pool, gpu_on_node, gpu_with_init, plain};
use crate::model::policy::Policy;

impl Scenario {
    /// All steps, once.
    ///
    /// # Errors
    /// When a step's effect does not come about, or a program has ended.
    pub(crate) async fn play(&self) -> anyhow::Result<()> {
        self.sabotage_gpus();
        self.plain_pods().await?;
        self.daemon_set().await?;
        self.fragmented_gpus().await?;
        self.shared_gpus().await?;
        self.equal_pods_at_once().await?;
        self.node_turns_hot().await?;
        self.exporter_dies().await?;
        self.pod_too_big_for_a_gpu().await?;
        self.plugin_dies().await?;
        self.kubelet_restarts().await?;
        self.crane_policy().await?;
        self.refill().await?;
        self.say("Everything has settled.");
        self.all_run().await?;
        self.lasting_effects().await
    }

    fn sabotage_gpus(&self) {
        if self.sabotage == Some(Sabotage::Gpu) {
            self.cluster.hand_over_wrong_gpus("gpu-1");
            self.cluster.hand_over_wrong_gpus("gpu-2");
        }
    }

    async fn plain_pods(&self) -> anyhow::Result<()> {
        self.say("Web pods. By requests alone, the overloaded cpu-2 looks best; it gets none.");
        self.stream((1..=8).map(|i| plain(&format!("web-{i}")))).await;
        self.all_run().await
    }

    async fn daemon_set(&self) -> anyhow::Result<()> {
        self.say("A DaemonSet wants a pod on each GPU node: gpu-4 takes its own in spite of load.");
        let nodes = gpu_nodes().enumerate();
        self.stream(nodes.map(|(i, (_, plan))| daemon(&format!("agent-{}", i + 1), plan.name)))
            .await;
        self.all_run().await?;
        self.pause().await;
        Ok(())
    }

    async fn fragmented_gpus(&self) -> anyhow::Result<()> {
        self.say("gpu-1 has 14 GiB left, 7 on each GPU: 10 GiB for one pod are elsewhere.");
        self.stream((1..=2).map(|i| gpu_on_node(&format!("hold-{i}"), 9, "gpu-1"))).await;
        self.all_run().await?;
        self.stream((1..=2).map(|i| gpu_in_pool(&format!("split-{i}"), 10))).await;
        self.all_run().await?;
        self.pause().await;
        ["hold-1", "hold-2"].iter().for_each(|pod| self.delete(pod));
        Ok(())
    }

    async fn shared_gpus(&self) -> anyhow::Result<()> {
        self.say("GPU memory is shared: all containers of a pod on one GPU, full GPUs first.");
        let sizes = [12, 4, 9, 6, 5];
        let pods =
            sizes.iter().enumerate().map(|(i, size)| gpu(&format!("train-{}", i + 1), &[*size]));
        let more = [gpu("duo-1", &[3, 2]), gpu("duo-2", &[4, 4]), gpu_with_init("init-1", 6, 4)];
        self.stream(pods.chain(more)).await;
        self.all_run().await?;
        if self.sabotage == Some(Sabotage::Ledger) {
            self.bind_past_the_ledger().await?;
        }
        self.pause().await;
        Ok(())
    }

    /// Creates a bound pod with a copy of another pod's claim, so that 12 GiB of a GPU are promised twice.
    async fn bind_past_the_ledger(&self) -> anyhow::Result<()> {
        let pods = self.cluster.pods();
        let Some(victim) = pods.iter().find(|pod| name(pod) == "train-1") else { return Ok(()) };
        let mut rogue: Value = gpu("rogue-1", &[12]);
        rogue["metadata"]["annotations"] = victim["metadata"]["annotations"].clone();
        rogue["spec"]["nodeName"] = victim["spec"]["nodeName"].clone();
        self.create(rogue);
        self.all_run().await
    }

    async fn equal_pods_at_once(&self) -> anyhow::Result<()> {
        self.say("Twelve equal pods at once, their bindings held up so that they land shuffled.");
        for i in 0..12_u64 {
            let delay = Duration::from_millis(i * 271 % 400);
            self.cluster.sim.faults().next_bindings(1, Fault::Delay(delay));
        }
        (1..=12).for_each(|i| self.create(gpu(&format!("infer-{i}"), &[2])));
        self.all_run().await?;
        self.pause().await;
        Ok(())
    }

    async fn node_turns_hot(&self) -> anyhow::Result<()> {
        self.say("cpu-4 turns hot by something that is no pod: new pods stay away from it.");
        self.cluster.loads.set_cpu("cpu-4", 0.95);
        self.is_rejected("cpu-4").await?;
        self.stream((9..=13).map(|i| plain(&format!("web-{i}")))).await;
        self.all_run().await
    }

    /// Waits until the extender rejects a node for its load. From then on the checker allows no pod there.
    async fn is_rejected(&self, node: &str) -> anyhow::Result<()> {
        // This sabotage hides the load from the exporters, so that no program can reject the node for it.
        if self.sabotage == Some(Sabotage::Hot) {
            return Ok(());
        }
        let is_annotated = self.cluster.wait_until("its overload is annotated", |cluster| {
            cluster.is_annotated_overloaded(node)
        });
        is_annotated.await?;
        ExtenderProbe::new(&self.cluster)?.rejects(node).await?;
        let is_seen = self.cluster.wait_until("the checker has seen its overload", |_| {
            self.observer.checker().extender_rejects(node)
        });
        is_seen.await
    }

    async fn exporter_dies(&self) -> anyhow::Result<()> {
        self.say("cpu-5's exporter is killed: its last reading counts, until it is too old.");
        self.cluster.kill(&exporter("cpu-5")).await?;
        self.stream((14..=16).map(|i| plain(&format!("web-{i}")))).await;
        self.all_run().await
    }

    async fn pod_too_big_for_a_gpu(&self) -> anyhow::Result<()> {
        self.say("20 GiB fit on nodes, but on no single GPU: the pod waits, and says why.");
        self.create(gpu(BIG_POD, &[BIG_SIZE]));
        let what = "big-1 waits, and says for what";
        self.cluster.wait_until(what, big_pod_waits_for_a_gpu).await?;
        self.pause().await;
        Ok(())
    }

    async fn plugin_dies(&self) -> anyhow::Result<()> {
        self.say("gpu-5's device plugin is killed: running pods stay, new ones go elsewhere.");
        self.cluster.kill(&plugin("gpu-5")).await?;
        self.cluster
            .wait_until("gpu-5 offers nothing", |cluster| cluster.gpu_units("gpu-5") == 0)
            .await?;
        self.stream((1..=3).map(|i| gpu(&format!("late-{i}"), &[2]))).await;
        self.all_run().await?;
        self.pause().await;
        self.say("The plugin is back, and finds its pods in the kubelet's record.");
        self.cluster.start_plugin("gpu-5")?;
        self.cluster
            .wait_until("gpu-5 offers its units again", |cluster| cluster.gpu_units("gpu-5") > 0)
            .await?;
        self.stream((4..=6).map(|i| gpu(&format!("late-{i}"), &[3]))).await;
        self.all_run().await?;
        self.records_match_claims("gpu-5").await
    }

    async fn kubelet_restarts(&self) -> anyhow::Result<()> {
        self.say("gpu-2's kubelet restarts: its pods run on, each keeps its GPU.");
        self.cluster.restart_kubelet("gpu-2").await?;
        self.stream((7..=9).map(|i| gpu(&format!("late-{i}"), &[2]))).await;
        self.all_run().await?;
        self.records_match_claims("gpu-2").await?;
        self.pause().await;
        Ok(())
    }

    /// cpu-4 is brought between the limits of both policies: it takes no pods for as long as crane's is in force.
    async fn crane_policy(&self) -> anyhow::Result<()> {
        self.say("The policy file is replaced by one of crane's kind: hard limits of 65%.");
        self.cluster.loads.set_cpu("cpu-4", 0.72);
        self.switch_policy(Policy::Crane).await?;
        self.is_rejected("cpu-4").await?;
        self.say("crane's policy: cpu-4 is at 72% and gets no pods; scores go to 10, not 100.");
        self.stream((1..=5).map(|i| plain(&format!("crane-{i}")))).await;
        self.all_run().await?;
        let is_hot = |cluster: &Cluster| cluster.hottest_node().is_some();
        self.cluster.wait_until("a node is hot by recent pods", is_hot).await?;
        self.pause().await;
        if let Some((node, value)) = self.cluster.hottest_node() {
            self.say(&format!(
                "{node}'s hot value is {value} by its recent pods: each 1 costs a point of 10."
            ));
        }
        self.pause().await;
        self.switch_policy(Policy::Shipped).await?;
        self.say("The shipped policy is back: limits of 80% and 90%, scores to 100.");
        (1..=5).for_each(|i| self.delete(&format!("crane-{i}")));
        self.pause().await;
        Ok(())
    }

    /// Replaces the policy file, and waits until extender and annotator follow it.
    async fn switch_policy(&self, policy: Policy) -> anyhow::Result<()> {
        // Until both do, the checker goes by the limits that are less strict.
        self.cluster.loads.set_policy(Policy::Shipped);
        let since = Timestamp::now();
        self.cluster.write_policy(policy)?;
        ExtenderProbe::new(&self.cluster)?.programs_follow(policy, since).await?;
        self.cluster.loads.set_policy(policy);
        Ok(())
    }

    async fn refill(&self) -> anyhow::Result<()> {
        self.say("gpu-4 cools down and half of the GPU pods end: others take their place.");
        self.cluster.loads.set_cpu("gpu-4", 0.2);
        let running = self.names(|pod| is_running(pod) && asks_gpu(pod));
        running.iter().step_by(2).for_each(|pod| self.delete(pod));
        let is_cool = self.cluster.wait_until("gpu-4's load is annotated", |cluster| {
            !cluster.is_annotated_overloaded("gpu-4")
        });
        is_cool.await?;
        let sizes = [7, 3, 5, 2, 9, 4, 6, 3, 8, 2];
        let pods =
            sizes.iter().enumerate().map(|(i, size)| gpu(&format!("next-{}", i + 1), &[*size]));
        self.stream(pods).await;
        self.all_run().await?;
        self.pause().await;
        Ok(())
    }

    /// Checks what must still hold at the end: the big pod waits for GPU memory, and nothing was made up about the node
    /// whose exporter died.
    async fn lasting_effects(&self) -> anyhow::Result<()> {
        // Where by now no node has as much on all of its GPUs together, kube-scheduler asks the extender about none,
        // and says so itself.
        let reason = why_big_pod_waits(&self.cluster);
        let for_memory = ["GPU Memory in one device", "Insufficient aliyun.com/gpu-mem"];
        ensure!(
            for_memory.iter().any(|why| reason.contains(why)),
            "{BIG_POD} no longer says that it waits for GPU memory: {reason:?}"
        );
        ExtenderProbe::new(&self.cluster)?.finds_stale("cpu-5").await?;
        let cpu = self.cluster.annotated_cpu("cpu-5");
        // Its load oscillated between 0.41 and 0.53.
        ensure!(
            cpu.is_some_and(|cpu| (0.35..0.6).contains(&cpu)),
            "cpu-5's exporter was killed at a load of about 0.47, and its annotation says {cpu:?}"
        );
        for (_, plan) in gpu_nodes() {
            self.records_match_claims(plan.name).await?;
        }
        Ok(())
    }
}
