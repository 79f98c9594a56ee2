//! GPUs on which CUDA opens no context, by the real `gpu-probe` over the stand-in library.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, Command};

use serde_json::{Value, json};
use sim::{PODS, pod};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::rig::{A, B, PATIENCE, RESOURCE, Rig};

/// The server of contexts. Dropping it ends it.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn socket(rig: &Rig) -> PathBuf {
    rig.dir.path().join("contexts")
}

/// Starts `gpu-probe`, which cargo puts beside the tests' folder.
fn serve(rig: &Rig) -> Server {
    let tests = std::env::current_exe().unwrap();
    let program = tests.parent().unwrap().with_file_name("gpu-probe");
    assert!(
        program.exists(),
        "{} is missing: run `cargo build -p node-exporter-plus`",
        program.display()
    );
    let mut command = Command::new(program);
    command.arg("contexts").arg(socket(rig));
    command.env("PLIMSOLL_CUDA_LIBRARY", rig.dir.path().join("libcuda.so.1"));
    Server(command.spawn().unwrap())
}

/// Two GPUs of 2 GiB, with CDI devices, on which CUDA answers this; the stand-in library is CUDA's too.
async fn node(cuda_of_b: &Value) -> Rig {
    let rig = Rig::without_plugin(&[]).await;
    let nvml = rig.dir.path().join("libnvidia-ml.so.1");
    std::fs::copy(nvml, rig.dir.path().join("libcuda.so.1")).unwrap();
    rig.nvidia_gpus(&[A, B]);
    set_cuda(&rig, cuda_of_b);
    rig
}

fn set_cuda(rig: &Rig, of_b: &Value) {
    rig.script(&[
        json!({"uuid": A, "memoryMiB": 2048}),
        json!({"uuid": B, "memoryMiB": 2048, "cuda": of_b}),
    ]);
}

/// Begins the plugin, and waits until both GPUs take pods.
async fn begin(rig: &mut Rig) {
    rig.flags = vec![format!("--context-probe-socket={}", socket(rig).display())];
    rig.begin_plugin();
    is_open(rig).await;
}

async fn is_open(rig: &Rig) {
    let open = |gpus: &Value| gpus[0]["closed"].is_null() && gpus[1]["closed"].is_null();
    rig.gpus("both GPUs open", |gpus| gpus.as_array().unwrap().len() == 2 && open(gpus)).await;
}

async fn is_closed(rig: &Rig) {
    let b_alone = |gpus: &Value| gpus[0]["closed"].is_null() && gpus[1]["closed"] == "context";
    rig.gpus("GPU B closed", b_alone).await;
}

/// Has pods of two namespaces, claimed on GPU B, wait with programs that fail at once.
fn fail_pods(rig: &Rig, name: &str) {
    for namespace in ["default", "other"] {
        rig.bind(pod(name).in_namespace(namespace).asking(RESOURCE, 1), B);
        rig.sim.change(PODS, namespace, name, |pod| {
            pod["status"]["containerStatuses"] = json!([{
                "name": "main",
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {
                    "exitCode": 1, "startedAt": "2026-11-20T09:00:00Z", "finishedAt": "2026-11-20T09:00:03Z",
                }},
            }]);
        });
    }
}

/// What the plugin asks of a server that gives these answers, one after the other, and the last one from then on.
struct Asked(mpsc::UnboundedReceiver<String>);

impl Asked {
    fn by(rig: &Rig, answers: &'static [&'static str]) -> Self {
        let listener = UnixListener::bind(socket(rig)).unwrap();
        let (sender, asked) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            let last = answers.last().unwrap();
            let answers = answers.iter().chain(std::iter::repeat(last));
            for (client, answer) in listener.incoming().zip(answers) {
                let mut client = client.unwrap();
                let mut question = String::new();
                BufReader::new(&client).read_line(&mut question).unwrap();
                // Passed on before the answer, so that a test which sees the effect of the answer has the question.
                if sender.send(question).is_err() {
                    return;
                }
                let _ = writeln!(client, "{answer}");
            }
        });
        Self(asked)
    }

    async fn next(&mut self) -> String {
        timeout(PATIENCE, self.0.recv()).await.expect("a question").unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_on_which_cuda_opens_no_context_takes_no_pods_until_it_does() {
    let mut rig = node(&json!({"call": "cuInit", "code": 802})).await;
    let _server = serve(&rig);
    begin(&mut rig).await;
    is_closed(&rig).await;
    let event = rig.event("GPUContextFailed").await;
    assert_eq!(event["regarding"]["kind"], "Node");
    let note = event["note"].as_str().unwrap();
    for part in [B, "cuInit: CUDA error 802 (CUDA_ERROR_SYSTEM_NOT_READY)", "nvidia-fabricmanager"]
    {
        assert!(note.contains(part), "{note}");
    }
    rig.kubelet.devices("healthy ids", |devices| devices.values().all(|healthy| *healthy)).await;
    set_cuda(&rig, &Value::Null);
    fail_pods(&rig, "fails");
    is_open(&rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_server_and_an_answer_that_is_none_close_nothing_and_pods_that_fail_are_a_reason_to_ask()
{
    let mut rig = node(&Value::Null).await;
    // The other GPU has no room for a context.
    let a = json!({"uuid": A, "memoryMiB": 2048, "usedMiB": 1025, "cudaMajor": 9});
    rig.script(&[a, json!({"uuid": B, "memoryMiB": 2048, "cudaMajor": 9})]);
    begin(&mut rig).await;
    rig.kubelet.registered(1).await;
    let mut asked = Asked::by(&rig, &["nonsense", "unknown no memory", "failed CUDA is silent"]);
    for round in ["first", "second", "third"] {
        fail_pods(&rig, round);
        assert_eq!(asked.next().await, format!("{B} none\n"));
        is_open(&rig).await;
    }
    assert_eq!(asked.next().await, format!("{B} none\n"), "once more after a failure");
    is_closed(&rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_is_asked_by_mps_where_the_node_has_it_and_only_while_memory_is_free() {
    let mut rig = node(&Value::Null).await;
    let _daemon = rig.host_pipe("mps/pipe/control");
    let set_used = |rig: &Rig, used_of_a: u32| {
        let a = json!({"uuid": A, "memoryMiB": 2048, "usedMiB": used_of_a, "cudaMajor": 9});
        rig.script(&[a, json!({"uuid": B, "memoryMiB": 2048, "cudaMajor": 9})]);
    };
    set_used(&rig, 1025);
    let mut asked = Asked::by(&rig, &["passed"]);
    begin(&mut rig).await;
    assert_eq!(asked.next().await, format!("{B} mps /run/nvidia-mps\n"));
    set_used(&rig, 1024);
    assert_eq!(asked.next().await, format!("{A} mps /run/nvidia-mps\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_whose_units_pods_hold_is_not_asked_until_they_end() {
    let mut rig = node(&Value::Null).await;
    begin(&mut rig).await;
    rig.kubelet.registered(1).await;
    rig.run(pod("whole").asking(RESOURCE, 2), A).await.unwrap();
    rig.stop_plugin().await;
    let mut asked = Asked::by(&rig, &["passed"]);
    begin(&mut rig).await;
    assert_eq!(asked.next().await, format!("{B} none\n"));
    rig.end("whole");
    assert_eq!(asked.next().await, format!("{A} none\n"));
}
