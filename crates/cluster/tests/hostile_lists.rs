//! What lists cost that others made as long and as odd as they could: each kind that is listed for a question. A binary
//! of its own, for the memory is the process's.
//!
//! The server sends objects without end. Memory is the kernel's count of the most that was resident (`VmHWM`). Times
//! are printed; no test fails because of them.

#![allow(clippy::print_stderr, reason = "a test may print what it measured")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::{Budgets, Client, Pod, ServicePort};
use placement::names::Names;
use placement::node_rules::NodeRules;
use placement::resources::Amounts;
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(300);
const MIB: u64 = 1 << 20;

/// Objects of a list, as JSON, again and again.
struct Served {
    /// Some objects with commas after each.
    block: Vec<u8>,
    /// How often the block is sent; `None`: until the client has had enough.
    blocks: Option<usize>,
}

impl Served {
    fn of(object: &Value, blocks: Option<usize>) -> Self {
        let object = format!("{object},");
        let each = if blocks.is_some() { 1 } else { (1 << 20) / object.len() + 1 };
        Self { block: object.repeat(each).into_bytes(), blocks }
    }

    fn send(&self, mut to: TcpStream) -> std::io::Result<()> {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n";
        let list = r#"{"metadata":{"resourceVersion":"7"},"items":["#;
        write!(to, "{head}{list}")?;
        let mut sent = 0;
        while self.blocks.is_none_or(|blocks| sent < blocks) {
            to.write_all(&self.block)?;
            sent += 1;
        }
        // Of a list that ends, the last object has no comma after it.
        to.write_all(b"{}]}")
    }
}

/// Answers every list with these objects, and every request of a node with an empty one.
fn serve(served: Served) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let served = Arc::new(served);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let served = Arc::clone(&served);
            std::thread::spawn(move || answer(stream, &served));
        }
    });
    address
}

fn answer(mut stream: TcpStream, served: &Served) {
    let mut head = [0; 8192];
    let read = stream.read(&mut head).unwrap_or(0);
    let line = String::from_utf8_lossy(&head[..read]);
    if line.starts_with("GET /api/v1/nodes/") {
        let answer =
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n{}";
        let _ = stream.write_all(answer.as_bytes());
    } else {
        // The client closes the connection before the end.
        let _ = served.send(stream);
    }
}

fn resident(what: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() << 10
}

/// Runs the call against a server of these objects. Returns its outcome, and how many more bytes were resident
/// meanwhile than before.
async fn measured<T>(what: &str, served: Served, call: impl AsyncFnOnce(Client) -> T) -> (T, u64) {
    let address = serve(served);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("http://{address}")}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    });
    std::fs::write(&path, config.to_string()).unwrap();
    let client = cluster::client(Some(&path)).await.unwrap();
    // The most that was resident begins anew.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = resident("VmRSS:");
    let began = Instant::now();
    let outcome = call(client).await;
    let took = began.elapsed();
    let more = resident("VmHWM:").saturating_sub(before);
    eprintln!("{what}: {} KiB more, {took:?}", more >> 10);
    (outcome, more)
}

/// A budget with so many expressions that each take 350 bytes once they are read.
fn budget(expressions: usize, annotation: usize) -> Value {
    let expression = json!({"key": "a", "operator": "NotIn", "values": [""]});
    json!({
        "metadata": {"name": "b", "namespace": "ml", "annotations": {"text": "x".repeat(annotation)}},
        "spec": {"selector": {"matchExpressions": vec![expression; expressions]}},
        "status": {"disruptionsAllowed": 1},
    })
}

fn pod(name: &str, labels: usize, argument: usize) -> Value {
    let labels: serde_json::Map<_, _> =
        (0..labels).map(|n| (format!("l{n}"), "x".into())).collect();
    json!({
        "metadata": {"name": name, "namespace": "ml", "uid": name, "labels": labels},
        "spec": {"priority": 0, "containers": [{
            "name": "main", "args": ["x".repeat(argument)],
            "resources": {"limits": {"aliyun.com/gpu-mem": "1"}, "requests": {"cpu": "1"}},
        }]},
        "status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"},
        ]},
    })
}

/// Whether the budgets of a namespace that sends these are known, and the bytes that it took to read them.
async fn budgets_of(what: &str, served: Served) -> (bool, u64) {
    let (budgets, more) = measured(what, served, async |client| {
        let mut budgets = Budgets::default();
        budgets.read(&client, ["ml".to_owned()].into(), LIMIT).await;
        budgets
    })
    .await;
    (budgets.is_known("ml"), more)
}

#[tokio::test]
async fn whatever_others_write_a_list_costs_little_memory_and_has_an_end() {
    let names = Names::default();
    let preemptor = json!({
        "metadata": {"name": "p", "namespace": "ml", "uid": "p"},
        "spec": {"priority": 9, "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
    });
    let preemptor: Pod = serde_json::from_value(preemptor).unwrap();
    // So that no case pays for what the first call alone needs.
    let (is_known, _) = budgets_of("usual budgets", Served::of(&budget(2, 500), Some(300))).await;
    assert!(is_known);

    // 84 MB.
    let attack = Served::of(&budget(16_384, 0), Some(120));
    let (is_known, more) = budgets_of("120 budgets of 16,384 expressions", attack).await;
    assert!(!is_known && more < 5 * MIB);
    for (expressions, annotation) in [(16_384, 0), (64, 0), (1, 0), (1, 250_000)] {
        let what =
            format!("budgets of {expressions} expressions and {annotation} bytes of annotations");
        let served = Served::of(&budget(expressions, annotation), None);
        let (is_known, more) = budgets_of(&what, served).await;
        assert!(!is_known && more < 5 * MIB, "{what}");
    }
    // As many expressions as are kept of a namespace, for as many pods as Kubernetes supports on a node.
    let (budgets, _) = measured(
        "15 budgets of 64 expressions",
        Served::of(&budget(64, 0), Some(15)),
        async |client| {
            let mut budgets = Budgets::default();
            budgets.read(&client, ["ml".to_owned()].into(), LIMIT).await;
            budgets
        },
    )
    .await;
    assert!(budgets.is_known("ml"));
    let pods = Served::of(&pod("small", 30, 0), Some(110));
    let (pods, _) = measured("110 pods", pods, async |client| {
        cluster::node_pods(&client, "n", &preemptor, &names, LIMIT).await.unwrap()
    })
    .await;
    let began = Instant::now();
    let occupants = pods.occupants(&budgets, &NodeRules::default());
    eprintln!("110 pods under these budgets: {:?}", began.elapsed());
    // Each budget allows one eviction. The last object of the list is a pod of no namespace, whose budgets are not
    // known.
    let violating = occupants.evictable.iter().filter(|pod| pod.violates_budget).count();
    assert_eq!((violating, occupants.evictable.len()), (110, 111));
    for (labels, argument) in [(0, 1_300_000), (30, 0), (2_000, 0)] {
        let what = format!("pods of {labels} labels and {argument} bytes of arguments");
        let served = || Served::of(&pod("large", labels, argument), None);
        let (read, more) = measured(&format!("{what}, for preemption"), served(), async |client| {
            cluster::node_pods(&client, "n", &preemptor, &names, LIMIT).await.map(drop)
        })
        .await;
        assert!(read.is_err() && more < 32 * MIB, "{what}: {read:?}");
        let (read, more) = measured(&format!("{what}, for moves"), served(), async |client| {
            cluster::read_node(&client, "n", &names, |_| Amounts::default(), LIMIT).await.map(drop)
        })
        .await;
        assert!(read.is_err() && more < 32 * MIB, "{what}: {read:?}");
    }
    let load = json!({"metadata": {"name": "n"}, "timestamp": "2026-11-20T09:00:07Z"});
    let (read, more) = measured("loads of nodes", Served::of(&load, None), async |client| {
        cluster::list_node_uses(&client, LIMIT).await.map(drop)
    })
    .await;
    assert!(read.is_err() && more < 32 * MIB, "{read:?}");
    let endpoints = vec![json!({"addresses": ["10.0.0.1"], "nodeName": "n"}); 1_000];
    let slice = json!({"metadata": {"name": "s"}, "ports": [{"port": 1}], "endpoints": endpoints});
    let (read, more) = measured("endpoints", Served::of(&slice, None), async |client| {
        let service = ServicePort::parse("plimsoll/annotator").unwrap();
        cluster::list_endpoints(&client, &service, LIMIT).await.map(drop)
    })
    .await;
    assert!(read.is_err() && more < 32 * MIB, "{read:?}");
}
