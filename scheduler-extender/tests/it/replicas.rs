//! Two replicas with a Lease: one gives out GPUs, the other passes requests on and is ready to take over.

use std::net::SocketAddr;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use sim::scheduler::{Scheduler, SchedulerConfig};
use sim::{Fault, LEASES, PODS, Sim, Verb, pod};
use tokio::net::TcpStream;

use crate::rig::{GPU, POLICY, Rig, annotation, binding, gpu_node, gpu_pod};

const BIND: &str = "/gpushare-scheduler/bind";

/// Flags of one of several replicas.
pub(crate) fn flags(duration: &str) -> Vec<String> {
    let duration = format!("--lease-duration={duration}");
    ["--lease-name=extender", "--advertise-address=127.0.0.1", &duration].map(str::to_owned).into()
}

pub(crate) async fn replica(sim: &Sim, duration: &str) -> Rig {
    let flags = flags(duration);
    Rig::start_with(sim, &flags.iter().map(String::as_str).collect::<Vec<_>>()).await
}

/// A replica that gives out GPUs.
async fn leader(sim: &Sim, duration: &str) -> Rig {
    let rig = replica(sim, duration).await;
    leads(&rig).await;
    rig
}

pub(crate) async fn leads(rig: &Rig) {
    rig.until("the takeover", async || is_leader(rig)).await;
}

pub(crate) fn is_leader(rig: &Rig) -> bool {
    rig.context.metrics().unwrap().contains("\nplimsoll_extender_leader 1\n")
}

/// Two replicas, of which the first leads, and a node with one GPU.
async fn pair(duration: &str) -> (Sim, Rig, Rig) {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("n1", 1));
    let first = leader(&sim, duration).await;
    let second = replica(&sim, duration).await;
    second.until("a look at the Lease", async || passes_on(&second).await).await;
    (sim, first, second)
}

/// Whether the replica knows a leader to pass requests on to.
async fn passes_on(rig: &Rig) -> bool {
    let pod = json!({"metadata": {"name": "nobody", "namespace": "default", "uid": "0"}});
    let filtered = rig.filter("/gpushare-scheduler", &pod, &["n1"]).await;
    filtered["Error"] == ""
}

fn node_of(sim: &Sim, name: &str) -> Option<String> {
    sim.pod("default", name)?["spec"]["nodeName"].as_str().map(str::to_owned)
}

fn holder(sim: &Sim) -> String {
    let lease = sim.get(LEASES, "default", "extender").unwrap_or_default();
    lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
}

async fn filters(rig: &Rig, pod: &Value) -> bool {
    let filtered = rig.filter("/gpushare-scheduler", pod, &["n1"]).await;
    assert_eq!(filtered["Error"], "");
    filtered["NodeNames"] == json!(["n1"])
}

#[tokio::test]
async fn whichever_replica_is_asked_the_one_that_leads_gives_out_the_gpu() {
    let (sim, first, second) = pair("15s").await;
    assert!(is_leader(&first) && !is_leader(&second));
    assert!(first.context.health().is_ready() && second.context.health().is_ready());
    let (one, two) = (gpu_pod(&sim, "one", 9), gpu_pod(&sim, "two", 9));
    // Both at once: the second replica's own ledger would have room for its pod.
    let answers = tokio::join!(first.bind(&one, "n1"), second.bind(&two, "n1"));
    let failed = [&answers.0, &answers.1].into_iter().filter(|error| !error.is_empty()).count();
    assert_eq!((failed, sim.log().bindings().len()), (1, 1), "{answers:?}");
    let names = json!({"Pod": one, "Nodes": null, "NodeNames": ["n1"]});
    assert_eq!(second.post("/gpushare-scheduler/prioritize", &names).await[0]["Host"], "n1");
    let page = second.context.metrics().unwrap();
    assert!(page.contains("forwarded_requests_total{outcome=\"ok\"}"), "{page}");
    // Load is answered by each.
    assert_eq!(second.scores(&one, &["n1"]).await.len(), 1);
}

#[tokio::test]
async fn a_request_that_was_passed_on_is_not_passed_on_again() {
    let (sim, _first, second) = pair("15s").await;
    let train = gpu_pod(&sim, "train", 5);
    let request = sim::http_client().unwrap().post(second.url(BIND));
    let request = request.header("plimsoll-forwarded", "1").body(binding(&train, "n1").to_string());
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 421);
    assert!(answer.text().await.unwrap().contains("does not lead"));
    assert_eq!(sim.log().bindings().len(), 0);
}

#[tokio::test]
async fn a_leader_that_ends_finishes_its_bindings_before_another_gives_out_gpus() {
    let (sim, first, second) = pair("15s").await;
    let (one, two) = (gpu_pod(&sim, "one", 9), gpu_pod(&sim, "two", 9));
    let before = holder(&sim);
    sim.faults().next_bindings(1, Fault::Hang);
    let ending = async {
        sim.until("the binding", |sim| (sim.faults().hanging() > 0).then_some(())).await.unwrap();
        first.context.shutdown().cancel();
        // Asked of both while none leads; both wait for the next leader.
        let asked = async { tokio::join!(first.bind(&two, "n1"), filters(&second, &two)) };
        let released = async {
            first.until("resignation", async || !is_leader(&first)).await;
            assert_eq!(holder(&sim), before);
            sim.faults().release();
        };
        tokio::join!(asked, released).0
    };
    let (bound, (refused, passes)) = tokio::join!(first.bind(&one, "n1"), ending);
    assert_eq!(bound, "");
    assert!(refused.contains("Insufficient GPU Memory"), "{refused}");
    assert!(!passes);
    leads(&second).await;
    assert_ne!(holder(&sim), before);
}

#[tokio::test]
async fn a_new_leader_reads_the_cluster_anew_however_far_behind_its_watch_is() {
    let (sim, first, second) = pair("15s").await;
    let (one, two) = (gpu_pod(&sim, "one", 9), gpu_pod(&sim, "two", 9));
    // From now on the second sees no change.
    sim.faults().next(usize::MAX, Verb::Watch, PODS, Fault::Hang);
    sim.faults().disconnect_watches();
    sim.until("the watches", |sim| (sim.faults().hanging() >= 2).then_some(())).await.unwrap();
    assert_eq!(first.bind(&one, "n1").await, "");
    assert_eq!(second.used().await, 0);
    first.context.shutdown().cancel();
    leads(&second).await;
    assert_eq!(second.used().await, 9);
    assert!(!filters(&second, &two).await);
}

#[tokio::test]
async fn a_leader_that_cannot_renew_begins_no_binding() {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("n1", 1));
    let rig = leader(&sim, "3s").await;
    let train = gpu_pod(&sim, "train", 5);
    for verb in [Verb::Update, Verb::Get] {
        sim.faults().next(usize::MAX, verb, LEASES, Fault::DropRequest);
    }
    rig.until("the end of the term", async || !is_leader(&rig)).await;
    let error = rig.bind(&train, "n1").await;
    assert!(error.contains("no replica of scheduler-extender gives out GPUs"), "{error}");
    assert_eq!((sim.log().bindings().len(), rig.used().await), (0, 0));
    sim.faults().release();
    leads(&rig).await;
    assert_eq!(rig.bind(&train, "n1").await, "");
}

/// A replica in a process of its own. Dropping it kills it.
struct Process {
    child: Child,
    address: SocketAddr,
    _files: tempfile::TempDir,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    async fn start(sim: &Sim, duration: &str) -> Self {
        let files = tempfile::tempdir().unwrap();
        let path = |name: &str| files.path().join(name);
        sim.write_kubeconfig(&path("kubeconfig")).unwrap();
        std::fs::write(path("policy"), POLICY).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_scheduler-extender"))
            .args(flags(duration))
            .arg("--listen-address=127.0.0.1:0")
            .arg("--admin-address=127.0.0.1:0")
            .arg(format!("--kubeconfig={}", path("kubeconfig").display()))
            .arg(format!("--policy-file={}", path("policy").display()))
            .spawn()
            .unwrap();
        // The first replica of its cluster: the Lease has its address.
        let leads = |sim: &Sim| {
            let lease = sim.get(LEASES, "default", "extender")?;
            lease["metadata"]["annotations"]["plimsoll.dev/address"].as_str()?.parse().ok()
        };
        let address = sim.until("the process's lead", leads).await.unwrap();
        Self { child, address, _files: files }
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    /// Binds, and returns the error; empty where it went well.
    async fn bind(&self, pod: &Value) -> Option<String> {
        let request = sim::http_client().unwrap().post(format!("http://{}{BIND}", self.address));
        let answer = request.body(binding(pod, "n1").to_string()).send().await.ok()?;
        let answer: Value = serde_json::from_str(&answer.text().await.ok()?).ok()?;
        Some(answer["Error"].as_str()?.to_owned())
    }
}

#[tokio::test]
async fn the_standby_of_a_killed_leader_knows_what_it_bound() {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("n1", 1));
    let mut killed = Process::start(&sim, "6s").await;
    let standby = replica(&sim, "6s").await;
    let (one, two, three) =
        (gpu_pod(&sim, "one", 9), gpu_pod(&sim, "two", 4), gpu_pod(&sim, "three", 4));
    // The reply is lost with the process.
    sim.faults().next_bindings(1, Fault::DropReply);
    let lost = async {
        sim.until("the binding", |sim| node_of(sim, "one")).await.unwrap();
        killed.child.kill().unwrap();
    };
    let request = sim::http_client().unwrap().post(format!("http://{}{BIND}", killed.address));
    let request = request.body(binding(&one, "n1").to_string()).send();
    let _ = tokio::join!(request, lost);
    leads(&standby).await;
    assert_eq!(standby.bind(&two, "n1").await, "");
    assert_eq!(standby.used().await, 13);
    assert!(standby.bind(&three, "n1").await.contains("Insufficient GPU Memory"));
    assert_eq!(standby.bind(&one, "n1").await, "");
}

/// A POST that is under way for longer than the Lease lasts, as when its sender was stopped between the check and the
/// send.
#[tokio::test]
async fn a_binding_of_a_stopped_leader_that_lands_late_is_charged_and_its_gpu_given_out_no_more() {
    let sim = Sim::start().await.unwrap();
    sim.put(gpu_node("n1", 1));
    let stopped = Process::start(&sim, "9s").await;
    let standby = replica(&sim, "9s").await;
    let (late, next) = (gpu_pod(&sim, "late", 9), gpu_pod(&sim, "next", 9));
    let small = gpu_pod(&sim, "small", 1);
    sim.faults().next_bindings(1, Fault::Hang);
    let stop = async {
        sim.until("the binding", |sim| (sim.faults().hanging() > 0).then_some(())).await.unwrap();
        stopped.signal("-STOP");
        leads(&standby).await;
        assert_eq!(standby.bind(&next, "n1").await, "");
        sim.faults().release();
        sim.until("the late binding", |sim| node_of(sim, "late")).await.unwrap();
        // More than the GPU has: the device plugin refuses the one that comes second.
        standby.until("the late pod", async || standby.used().await == 18).await;
        assert!(!filters(&standby, &small).await);
        stopped.signal("-CONT");
    };
    tokio::join!(stopped.bind(&late), stop);
    assert_eq!(annotation(&sim, &late, "ALIYUN_COM_GPU_MEM_IDX"), "0");
    // It leads no more: the next binding is that of the leader.
    let error = stopped.bind(&small).await.unwrap();
    assert!(error.contains("Insufficient GPU Memory"), "{error}");
    assert_eq!(sim.log().bindings().len(), 2);
}

/// What a Service is to kube-scheduler: one address, and each connection goes to one of the replicas behind it.
struct Service {
    address: SocketAddr,
    replicas: Arc<Mutex<Vec<SocketAddr>>>,
}

impl Service {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, replicas) =
            (listener.local_addr().unwrap(), Arc::<Mutex<Vec<SocketAddr>>>::default());
        let behind = Arc::clone(&replicas);
        tokio::spawn(async move {
            let mut turn = 0_usize;
            while let Ok((mut client, _)) = listener.accept().await {
                let all: Vec<SocketAddr> = behind.lock().unwrap().clone();
                turn += 1;
                let replica = all[turn % all.len()];
                tokio::spawn(async move {
                    let mut replica = TcpStream::connect(replica).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut replica).await;
                });
            }
        });
        Self { address, replicas }
    }

    fn has(&self, rigs: &[&Rig]) {
        *self.replicas.lock().unwrap() = rigs.iter().map(|rig| rig.address()).collect();
    }

    /// kube-scheduler with the entry for GPU pods at this address.
    fn scheduler(&self, sim: &Sim) -> Scheduler {
        let config = json!({"extenders": [{
            "urlPrefix": format!("http://{}/gpushare-scheduler", self.address),
            "filterVerb": "filter", "bindVerb": "bind", "nodeCacheCapable": true,
            "managedResources": [{"name": GPU}],
        }]});
        let config: SchedulerConfig = serde_json::from_value(config).unwrap();
        Scheduler::start(sim, config).unwrap().0
    }
}

#[tokio::test]
async fn both_replicas_are_replaced_under_a_stream_of_pods_and_no_call_fails() {
    let sim = Sim::start().await.unwrap();
    // One GPU each: no kubelet's records tell a new leader on which of several GPUs a pod is.
    for node in 0..12 {
        sim.put(gpu_node(&format!("n{node}"), 1).with(GPU, 16));
    }
    let service = Service::start().await;
    let mut replicas = vec![leader(&sim, "15s").await, replica(&sim, "15s").await];
    service.has(&[&replicas[0], &replicas[1]]);
    let _scheduler = service.scheduler(&sim);
    let mut pods = 0;
    let mut ended = Vec::new();
    for _ in 0..2 {
        create(&sim, &mut pods);
        // A new one is ready before an old one is told to end.
        replicas.push(replica(&sim, "15s").await);
        create(&sim, &mut pods);
        let old = replicas.remove(0);
        old.context.shutdown().cancel();
        // The Service learns of it a little later.
        create(&sim, &mut pods);
        service.has(&[&replicas[0], &replicas[1]]);
        create(&sim, &mut pods);
        bound(&sim, pods).await;
        ended.push(old);
    }
    let failed = |rig: &Rig| {
        let page = rig.context.metrics().unwrap();
        let lines = page.lines().filter(|line| line.starts_with("plimsoll_extender_"));
        let bad = ["no-leader", "slow", "not-leading", "in-doubt", "refused\"}", "no-card"];
        lines.filter(|line| bad.iter().any(|bad| line.contains(bad))).count()
    };
    let failures: usize = replicas.iter().chain(&ended).map(failed).sum();
    assert_eq!((failures, sim.log().bindings().len()), (0, pods));
}

/// Two more pods of half a GPU.
fn create(sim: &Sim, pods: &mut usize) {
    for _ in 0..2 {
        sim.put(pod(&format!("p{pods}")).asking(GPU, 8));
        *pods += 1;
    }
}

async fn bound(sim: &Sim, pods: usize) {
    let all = |sim: &Sim| {
        let bound = (0..pods).filter(|pod| node_of(sim, &format!("p{pod}")).is_some()).count();
        (bound == pods).then_some(())
    };
    sim.until("all pods to be bound", all).await.unwrap();
}
