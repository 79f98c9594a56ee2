//! [`Library`] over the stand-in library. Each test loads a copy of the library with a script of its own,
//! so that they can run at the same time.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cuda;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nvml::{ComputeMode, Error, Gpu, Library, MemoryLimit, Probe, Process, Recovery, Status, Xid};

/// Cargo puts the shared library of a dev-dependency beside the test executables.
fn standin() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let library = test.with_file_name("libplimsoll_nvml_standin.so");
    assert!(
        library.exists(),
        "{} is missing: run `cargo build -p plimsoll-nvml-standin`",
        library.display()
    );
    library
}

/// A private copy of the library, with its script beside it, where the library looks for it.
struct Node {
    dir: tempfile::TempDir,
}

impl Node {
    fn new(script: &str) -> Self {
        let node = Self { dir: tempfile::tempdir().unwrap() };
        std::fs::copy(standin(), node.library()).unwrap();
        node.write(script);
        node
    }

    fn library(&self) -> PathBuf {
        self.dir.path().join("libnvidia-ml.so.1")
    }

    /// Replaced in one step, so that no reader sees half a script.
    fn write(&self, script: &str) {
        let fresh = self.dir.path().join("fresh");
        std::fs::write(&fresh, script).unwrap();
        std::fs::rename(fresh, self.dir.path().join("nvml-script.json")).unwrap();
    }
}

const TWO_GPUS: &str = r#"{"driver":"580.95.05","cards":[
    {"uuid":"GPU-a","model":"NVIDIA A10","memoryMiB":23028,"reservedMiB":480,"minor":1,"numaNode":1,"pciBus":7,"cudaMajor":8,"linked":[1],
     "usedMiB":512,"utilisation":37,"temperature":41,"powerMilliwatt":60500,"mig":true,"recovery":1,"computeMode":3},
    {"uuid":"GPU-b","memoryMiB":16384}]}"#;

#[test]
fn gpus_are_what_the_script_says_and_the_rest_is_unknown() {
    let node = Node::new(TWO_GPUS);
    let gpus = Library::open(&node.library()).unwrap().gpus().unwrap();
    let a = Gpu {
        uuid: "GPU-a".to_owned(),
        index: 0,
        model: Some("NVIDIA A10".to_owned()),
        minor: Some(1),
        memory_mib: Some(23028),
        reserved_mib: Some(480),
        has_no_own_memory: false,
        numa_node: Some(1),
        linked: vec![1],
        pci_bus: Some("0000:07:00.0".to_owned()),
        cuda_major: Some(8),
    };
    let b = Gpu {
        uuid: "GPU-b".to_owned(),
        index: 1,
        memory_mib: Some(16384),
        reserved_mib: Some(0),
        linked: vec![0],
        ..Gpu::default()
    };
    assert_eq!(gpus, [a, b]);
    assert_eq!(Library::open(&node.library()).unwrap().driver().as_deref(), Some("580.95.05"));
}

#[test]
fn the_limit_of_a_control_group_is_what_the_driver_tells_and_else_unknown() {
    let node = Node::new(
        r#"{"cards":[{"uuid":"GPU-a","memoryMiB":8192,"limitsMiB":{"/groups/p":2048}},{"uuid":"GPU-b"},
            {"uuid":"GPU-c","limitsMiB":{},"healthy":false}]}"#,
    );
    let library = Library::open(&node.library()).unwrap();
    let limit = |uuid, group: &str| library.memory_limit(uuid, group.as_ref());
    assert_eq!(limit("GPU-a", "/groups/p").unwrap(), MemoryLimit::Bytes(2048 << 20));
    assert_eq!(limit("GPU-a", "/groups/q").unwrap(), MemoryLimit::Unlimited);
    assert_eq!(limit("GPU-a", "/groups/\0").unwrap(), MemoryLimit::Unknown, "no path");
    assert_eq!(limit("GPU-b", "/groups/p").unwrap(), MemoryLimit::Unknown, "an older driver");
    assert!(matches!(limit("GPU-c", "/groups/p"), Err(Error::Lost { .. })));
    assert!(matches!(limit("GPU-x", "/groups/p"), Err(Error::Lost { .. })));
}

#[test]
fn a_gpu_that_has_no_size_by_nvml_shares_the_hosts_memory() {
    let node = Node::new(
        r#"{"cards":[{"uuid":"GPU-a","model":"NVIDIA GB10"},{"uuid":"GPU-b","memoryMiB":16384}]}"#,
    );
    let gpus = Library::open(&node.library()).unwrap().gpus().unwrap();
    let sizes: Vec<_> = gpus.iter().map(|gpu| (gpu.memory_mib, gpu.has_no_own_memory)).collect();
    assert_eq!(sizes, [(None, true), (Some(16384), false)]);
}

#[test]
fn an_unsupported_reading_is_none_beside_the_supported_ones() {
    let node = Node::new(TWO_GPUS);
    let library = Library::open(&node.library()).unwrap();
    let full = Status {
        used_mib: Some(512),
        utilisation: Some(37),
        temperature: Some(41),
        power_milliwatt: Some(60500),
        mig: Some(true),
        recovery: Some(Recovery::GpuReset),
        compute_mode: Some(ComputeMode::ExclusiveProcess),
    };
    assert_eq!(library.status("GPU-a").unwrap(), full);
    assert_eq!(library.status("GPU-b").unwrap(), Status { used_mib: Some(0), ..Status::default() });
}

#[test]
fn a_compute_mode_is_read_by_its_number_and_one_that_is_new_is_unknown() {
    for (number, mode) in [
        (0, Some(ComputeMode::Default)),
        (1, Some(ComputeMode::ExclusiveProcess)),
        (2, Some(ComputeMode::Prohibited)),
        (3, Some(ComputeMode::ExclusiveProcess)),
        (4, None),
    ] {
        let node =
            Node::new(&format!(r#"{{"cards":[{{"uuid":"GPU-a","computeMode":{number}}}]}}"#));
        let status = Library::open(&node.library()).unwrap().status("GPU-a").unwrap();
        assert_eq!(status.compute_mode, mode, "{number}");
    }
}

#[test]
fn a_gpu_is_lost_and_comes_back() {
    let node = Node::new(TWO_GPUS);
    let library = Library::open(&node.library()).unwrap();
    node.write(r#"{"cards":[{"uuid":"GPU-a","healthy":false}]}"#);
    assert!(matches!(library.status("GPU-a"), Err(Error::Lost { uuid, .. }) if uuid == "GPU-a"));
    assert_eq!(library.gpus().unwrap()[0].uuid, "GPU-a", "it keeps its name");
    node.write(TWO_GPUS);
    assert_eq!(library.status("GPU-a").unwrap().used_mib, Some(512));
}

#[test]
fn a_gpu_unknown_to_the_driver_is_lost_not_zero() {
    let node = Node::new(TWO_GPUS);
    let library = Library::open(&node.library()).unwrap();
    assert!(matches!(library.status("GPU-c"), Err(Error::Lost { .. })));
}

/// The processes on the GPU `GPU-a` of this script's fields.
fn processes(gpu: &str) -> Option<Vec<Process>> {
    let node = Node::new(&format!(r#"{{"cards":[{{"uuid":"GPU-a",{gpu}}}]}}"#));
    Library::open(&node.library()).unwrap().processes("GPU-a", SystemTime::UNIX_EPOCH).unwrap()
}

fn process(pid: u32, used_bytes: Option<u64>, sm_percent: Option<u32>) -> Process {
    Process { pid, used_bytes, sm_percent, mps: None }
}

#[test]
fn processes_are_those_of_all_lists_with_their_memory_and_use_of_sms() {
    let found = processes(
        r#""processes":[{"pid":70,"usedBytes":5368709121,"sm":35},{"pid":7,"usedBytes":1,"graphics":true},
           {"pid":9,"sm":0}]"#,
    );
    let expected = [
        process(7, Some(1), Some(0)),
        process(9, None, Some(0)),
        process(70, Some(5_368_709_121), Some(35)),
    ];
    assert_eq!(found.unwrap(), expected);
}

#[test]
fn without_samples_sm_use_is_unknown_and_an_idle_gpu_reads_0() {
    assert_eq!(processes(r#""processes":[{"pid":7}]"#).unwrap(), [process(7, None, None)]);
    let idle = processes(r#""processes":[{"pid":7,"usedBytes":4,"sm":0}]"#);
    assert_eq!(idle.unwrap(), [process(7, Some(4), Some(0))]);
    assert_eq!(processes(r#""processes":[]"#).unwrap(), []);
}

#[test]
fn processes_are_unknown_where_the_driver_does_not_tell_or_the_gpu_is_split() {
    assert_eq!(processes(r#""memoryMiB":1"#), None);
    assert_eq!(processes(r#""mig":true,"processes":[{"pid":7}]"#), None);
}

#[test]
fn clients_of_mps_are_told_from_other_processes_where_the_driver_lists_them() {
    let found = processes(
        r#""processes":[{"pid":7,"usedBytes":4,"mps":true},{"pid":8,"usedBytes":5},{"pid":9,"mps":false}]"#,
    );
    let clients: Vec<_> = found
        .unwrap()
        .iter()
        .map(|process| (process.pid, process.used_bytes, process.mps))
        .collect();
    assert_eq!(
        clients,
        [(7, Some(4), Some(true)), (8, Some(5), Some(false)), (9, None, Some(false))]
    );
    let silent = processes(r#""processes":[{"pid":7}]"#).unwrap();
    assert_eq!(silent[0].mps, None, "a driver without that list");
}

#[test]
fn a_lost_gpu_tells_of_no_processes() {
    let node = Node::new(r#"{"cards":[{"uuid":"GPU-a","healthy":false,"processes":[]}]}"#);
    let library = Library::open(&node.library()).unwrap();
    for gpu in ["GPU-a", "GPU-c"] {
        let told = library.processes(gpu, SystemTime::UNIX_EPOCH);
        assert!(matches!(told, Err(Error::Lost { .. })), "{gpu}: {told:?}");
    }
}

/// Watches a GPU of [`TWO_GPUS`], and replaces the script once the watch has begun. Returns the errors
/// until the second, and how the watch ended.
fn watched(gpu: &str, then: &str) -> (Vec<Xid>, Result<(), Error>) {
    let node = Node::new(TWO_GPUS);
    let library = Library::open(&node.library()).unwrap();
    let mut seen = Vec::new();
    let mut ticks = 0;
    let mut observe = |xid: Option<Xid>| {
        match xid {
            None => {
                node.write(then);
                ticks += 1;
            }
            Some(xid) => seen.push(xid),
        }
        if seen.len() < 2 && ticks < 4 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let end = library.watch(gpu, Duration::from_millis(50), &mut observe);
    (seen, end)
}

#[test]
fn an_error_arrives_at_the_watch_of_its_gpu_and_no_other() {
    let raised = r#"{"cards":[{"uuid":"GPU-a"},{"uuid":"GPU-b","xid":79}]}"#;
    let (seen, end) = watched("GPU-b", raised);
    assert_eq!((seen, end.is_ok()), (vec![Xid { number: Some(79) }], true));
    let (seen, end) = watched("GPU-a", raised);
    assert_eq!((seen, end.is_ok()), (vec![], true));
}

#[test]
fn a_lost_gpu_ends_its_own_watch() {
    let lost = r#"{"cards":[{"uuid":"GPU-a","healthy":false},{"uuid":"GPU-b"}]}"#;
    let (seen, end) = watched("GPU-a", lost);
    assert!(matches!(&end, Err(Error::Lost { uuid, .. }) if uuid == "GPU-a"), "{end:?}");
    assert_eq!(seen, []);
    let (seen, end) = watched("GPU-b", lost);
    assert_eq!((seen, end.is_ok()), (vec![], true));
}

#[test]
fn a_gpu_that_is_lost_cannot_be_watched() {
    let node = Node::new(r#"{"cards":[{"uuid":"GPU-a","healthy":false}]}"#);
    let library = Library::open(&node.library()).unwrap();
    for gpu in ["GPU-a", "GPU-c"] {
        let end = library.watch(gpu, Duration::from_millis(50), &mut |_| ControlFlow::Break(()));
        assert!(matches!(end, Err(Error::Lost { .. })), "{gpu}: {end:?}");
    }
}

#[test]
fn a_machine_without_the_library_says_so_in_a_variant_of_its_own() {
    for library in ["libnvidia-ml-of-no-one.so.1", "/nonexistent/libnvidia-ml.so.1"] {
        let error = Library::open(Path::new(library)).unwrap_err();
        assert!(matches!(error, Error::LibraryAbsent { .. }), "{error}");
    }
}

#[test]
fn a_file_that_is_no_library_is_unusable_not_absent() {
    let file = tempfile::NamedTempFile::new().unwrap();
    assert!(matches!(Library::open(file.path()), Err(Error::Unusable { .. })));
}

#[test]
fn a_library_without_its_script_has_no_driver() {
    let node = Node::new(TWO_GPUS);
    std::fs::remove_file(node.dir.path().join("nvml-script.json")).unwrap();
    assert!(matches!(Library::open(&node.library()), Err(Error::Unusable { .. })));
}
