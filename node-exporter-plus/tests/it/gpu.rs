//! GPU signals through the real probe, which loads the stand-in library.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use node_exporter_plus::gpu::contexts::Contexts;

use crate::node::{Procfs, get};
use crate::process::{Exporter, HANG};

const GPUS: &str = r#"{"driver":"580.95.05","cards":[
    {"uuid":"GPU-a","memoryMiB":16384,"usedMiB":4096,"utilisation":30,"temperature":41,"powerMilliwatt":60500},
    {"uuid":"GPU-b","memoryMiB":16384,"utilisation":50},
    {"uuid":"GPU-c","healthy":false}]}"#;

/// A copy of the library, with its script beside it, where the library reads it.
fn library(procfs: &Procfs) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.with_file_name("libplimsoll_nvml_standin.so");
    assert!(built.exists(), "run `cargo build -p plimsoll-nvml-standin`: {}", built.display());
    let library = procfs.path().join("libnvidia-ml.so.1");
    fs::copy(built, &library).unwrap();
    fs::write(procfs.path().join("nvml-script.json"), GPUS).unwrap();
    library
}

#[tokio::test]
async fn gpus_have_values_and_health_and_the_node_has_their_mean() {
    let life = async {
        let procfs = Procfs::new();
        let folder = procfs.host();
        let library = library(&procfs);
        let library = format!("--nvml-library={}", library.display());
        let mut exporter = Exporter::start_with(folder, &[&library]);
        let address = exporter.address("/metrics and /statistics").await;
        let metrics = loop {
            let metrics = get(address, "/metrics", "*/*").await.body;
            if metrics.contains("node_gpu_usage_active") {
                break metrics;
            }
        };
        for line in [
            "node_gpu_usage_active 40",
            "node_gpu_mem_usage_active 12.5",
            "node_gpu_card_usage_active{card=\"GPU-a\"} 30",
            "node_gpu_card_temperature_celsius_active{card=\"GPU-a\"} 41",
            "node_gpu_card_power_watts_active{card=\"GPU-a\"} 60.5",
            "node_gpu_card_healthy_active{card=\"GPU-b\"} 1",
            "node_gpu_card_healthy_active{card=\"GPU-c\"} 0",
        ] {
            assert!(metrics.lines().any(|found| found == line), "{line} not in\n{metrics}");
        }
        assert!(!metrics.contains("node_gpu_card_usage_active{card=\"GPU-c\"}"), "{metrics}");
        assert_eq!(exporter.terminate().await.code(), Some(0));
    };
    tokio::time::timeout(HANG, life).await.unwrap();
}

#[tokio::test]
async fn a_node_without_the_library_has_no_gpu_signals_and_no_error() {
    let life = async {
        let procfs = Procfs::new();
        let flags = ["--nvml-library=libnvidia-ml-of-no-one.so.1"];
        let mut exporter = Exporter::start_with(procfs.host(), &flags);
        let line = exporter.line("no GPU signals: gpu-probe has ended").await;
        assert_eq!(line["why"], "no NVML library libnvidia-ml-of-no-one.so.1");
        assert_eq!(exporter.terminate().await.code(), Some(0));
    };
    tokio::time::timeout(HANG, life).await.unwrap();
}

/// The answer to a question, once somebody listens.
fn ask(socket: &Path, question: &str) -> String {
    let mut client = loop {
        match UnixStream::connect(socket) {
            Ok(client) => break client,
            Err(_) => sleep(Duration::from_millis(10)),
        }
    };
    writeln!(client, "{question}").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn contexts_are_opened_where_a_client_asks_until_the_server_is_terminated() {
    let node = Procfs::new();
    let socket = node.path().join("contexts");
    fs::write(&socket, "left behind").unwrap();
    let mut server = Command::new(env!("CARGO_BIN_EXE_gpu-probe"));
    server.arg("contexts").arg(&socket).env("PLIMSOLL_CUDA_LIBRARY", library(&node));
    let mut server = server.spawn().unwrap();
    let ask = |question| ask(&socket, question);
    assert_eq!(ask("GPU-b none"), "passed\n");
    let failed = ask("GPU-of-no-node none");
    assert!(failed.starts_with("failed cuInit: CUDA error 100 (CUDA_ERROR_NO_DEVICE)"), "{failed}");
    assert!(ask("").starts_with("unknown "));
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(server.wait().unwrap().code(), Some(0));
}

#[test]
fn a_context_that_hangs_has_failed_and_one_without_the_library_is_unknown() {
    let node = Procfs::new();
    let library = library(&node);
    let hangs = r#"{"cards":[{"uuid":"GPU-a","cuda":{"hangs":true}}]}"#;
    fs::write(node.path().join("nvml-script.json"), hangs).unwrap();
    let serve = |name: &str, library: PathBuf| {
        let socket = node.path().join(name);
        let listener = UnixListener::bind(&socket).unwrap();
        let contexts = Contexts::new(env!("CARGO_BIN_EXE_gpu-probe").into(), library);
        let contexts = contexts.within(Duration::from_secs(2));
        std::thread::spawn(move || contexts.serve(&listener));
        socket
    };
    let hung = ask(&serve("hangs", library), "GPU-a none");
    assert_eq!(hung, "failed CUDA does not answer within 2s\n");
    let absent = ask(&serve("absent", "libcuda-of-no-one.so.1".into()), "GPU-a none");
    assert!(absent.starts_with("unknown \"libcuda-of-no-one.so.1\" cannot be loaded"), "{absent}");
}
