//! The exporter's parsers of `/proc`, `/sys`, control groups and the GPU probe's output: either an error, or values
//! within their bounds, of signals whose names fit every format.

use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use node_exporter_plus::collectors::{
    cpu, disk, filesystem, load, memory, network, pressure, uptime,
};
use node_exporter_plus::gpu::GpuReport;
use node_exporter_plus::pods::{
    PodUid, PodUsage, PodUsages, Version, cpu as cpu_time, memory_used, number,
};
use node_exporter_plus::render::{Node, metrics, pods, statistics, statistics_v1};
use node_exporter_plus::series::{ACTIVE, Kind, Moment, Now, Reading, Signal};
use nvml::cuda::{Answer, MAX_LINE, Question};
use serde_json::Value;

use crate::{TREES, seeds, text};

/// Every parser of a kernel file. An input is one file, or the file at two samples with a NUL between them.
pub(crate) fn proc_files(input: &[u8]) {
    let cut = input.iter().position(|byte| *byte == 0).unwrap_or(input.len());
    let (before, after) = (&input[..cut], input.get(cut + 1..).unwrap_or_default());
    counters(before, after);
    gauges(before);
    devices(before);
    boot_id(before);
}

/// Asserts that the value is a percentage.
fn check_percent(value: f64) {
    assert!((0.0..=100.0).contains(&value), "{value} is no percentage");
}

fn counters(before: &[u8], after: &[u8]) {
    if let (Ok(before), Ok(after)) = (cpu::parse(before), cpu::parse(after)) {
        let passed = Duration::from_secs(10);
        for elapsed in [None, Some(cpu::Elapsed::new(passed, 4))] {
            let cpu::Shares { usage, busy, iowait, steal } =
                cpu::shares(before.all, after.all, elapsed, before.each.is_empty());
            [usage, busy, iowait, steal].into_iter().flatten().for_each(check_percent);
        }
    }
    let _ = pressure::parse(before);
}

fn gauges(file: &[u8]) {
    if let Ok(mut info) = memory::parse(file) {
        check_percent(info.usage());
        info.arc = memory::parse_arc(file);
        check_percent(info.usage());
        let text = text(file).unwrap_or_default();
        info.compressed = memory::parse_mm_stat(text).unwrap_or(info.compressed);
        info.devices = memory::parse_node(1, text).unwrap_or_default();
        check_percent(info.usage());
        info.swap_usage().into_iter().for_each(check_percent);
    }
    assert!(memory::zram_disks(file).iter().all(|(name, _)| !name.contains('/')));
    let loads = load::parse(file).unwrap_or_default();
    assert!(loads.iter().all(|load| load.is_finite() && *load >= 0.0), "{loads:?}");
    assert_ne!(load::parse_online(file), Ok(0));
    let _ = uptime::parse(file);
    let speed = network::parse_speed(file).unwrap_or(1.0);
    assert!(speed.is_finite() && speed > 0.0, "{speed}");
}

fn devices(file: &[u8]) {
    for stats in disk::parse(file).unwrap_or_default() {
        check_formats(&disk::DEVICE_USAGE, &stats.name);
    }
    for traffic in network::parse(file).unwrap_or_default() {
        check_formats(&network::DEVICE_USAGE, &traffic.name);
    }
    for root in ["/", "/host"] {
        let kubelet = Path::new("/var/lib/kubelet");
        for mount in filesystem::parse(file, Path::new(root), kubelet, |path| Some(path.to_owned()))
            .unwrap_or_default()
        {
            assert!(mount.path.starts_with(root), "{mount:?} is not below {root}");
            check_formats(&filesystem::MOUNT_USAGE, &mount.shown);
        }
    }
}

/// Asserts that a value of a device of this name is valid in every format of the exporter.
fn check_formats(kind: &'static Kind, instance: &str) {
    let signal = Signal::of_device(kind, instance);
    let name = signal.name();
    assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'), "{name:?}");
    let time = Moment(Duration::from_secs(100));
    let reading = Reading { signal, aggregate: ACTIVE, value: 1.0, coverage: 1.0, time };
    let flat: Value = json(&statistics([reading.clone()].into_iter()));
    assert_eq!(flat.as_object().map(serde_json::Map::len), Some(1), "{flat}");
    let now = Now { boot: time, wall: UNIX_EPOCH };
    let detailed = json(&statistics_v1(&node(None), [reading.clone()].into_iter(), now));
    let value = detailed["values"].as_object().into_iter().flatten().next();
    assert_eq!(value.map(|(_, value)| &value["instance"]), Some(&Value::from(instance)));
    let exposition = metrics([reading].into_iter());
    assert_eq!(exposition.lines().count(), 3, "{exposition}");
}

/// The boot id is any text of the kernel's file, as a JSON string.
fn boot_id(file: &[u8]) {
    let Some(id) = text(file) else { return };
    let now = Now { boot: Moment(Duration::ZERO), wall: UNIX_EPOCH };
    let statistics = json(&statistics_v1(&node(Some(id)), std::iter::empty(), now));
    assert_eq!(statistics["bootId"], id);
}

fn node(boot_id: Option<&str>) -> Node {
    let boot_id = boot_id.map(str::to_owned);
    Node { boot_id, uptime: None, sample_interval: Duration::from_secs(10) }
}

fn json(text: &str) -> Value {
    let value = serde_json::from_str(text);
    assert!(value.is_ok(), "{text} is no JSON");
    value.unwrap_or_default()
}

/// Each recorded file at two samples, with a NUL between them, and examples of files that were not recorded.
pub(crate) fn recorded_files() -> Vec<Vec<u8>> {
    let files = seeds::files(&[TREES]);
    let mut pairs: Vec<Vec<u8>> = Vec::new();
    for (path, first) in files.iter().filter(|(path, _)| path.contains("/0/")) {
        let later = path.replacen("/0/", "/1/", 1);
        if let Some((_, second)) = files.iter().find(|(path, _)| *path == later) {
            pairs.push([first.as_slice(), second].join(&0));
        }
    }
    let others =
        ["0-3,8\n", "1000\n", "350735.47 234388.90\n", "7c0b6c4e-5a53-4e9f-8ef0-1e3a2f0f8a11\n"];
    pairs.extend(others.map(Vec::from));
    pairs.push(MOUNTS.into());
    pairs.push(HUGE_PAGES_AND_ZFS.into());
    pairs.push(SWAP_AND_NODE.into());
    pairs
}

/// `/proc/meminfo` with huge pages, and behind it what `arcstats` has.
const HUGE_PAGES_AND_ZFS: &str = "MemTotal: 67108864 kB\nMemAvailable: 5242880 kB\nHugePages_Total: 1024\n\
    Hugepagesize: 2048 kB\nHugetlb: 2097152 kB\nname type data\nc_min 4 2147483648\nsize 4 42949672960\n";

/// `/proc/meminfo` with swap, and behind it what `/proc/swaps` and a NUMA node's `meminfo` have.
const SWAP_AND_NODE: &str = "MemTotal: 603979776 kB\nMemAvailable: 108003328 kB\nSwapCached: 1 kB\n\
    SwapTotal: 33554432 kB\nSwapFree: 12582912 kB\nZswap: 6291456 kB\n/dev/zram0 partition 33554432 20971520 100\n\
    Node 1 MemTotal: 100663296 kB\nNode 1 MemFree: 98566144 kB\nNode 1 Active(file): 524288 kB\n\
    Node 1 Inactive(file): 524288 kB\n";

const MOUNTS: &str = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
    30 22 0:25 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n\
    40 22 8:2 / /var/lib\\040x rw shared:5 - xfs /dev/sda2 rw\n\
    41 22 0:40 / /mnt/nfs rw - nfs4 server:/export rw\n\
    42 22 0:41 /@home /host/home rw - btrfs /dev/nvme0n1p3 rw,subvol=/@home\n";

/// Every parser of a control group's files, and of its name: whatever a pod has, `/v1/pods` is JSON with its UID and
/// with the values that are known.
pub(crate) fn cgroup_files(input: &[u8]) {
    let names = text(input).into_iter().flat_map(str::lines).filter_map(PodUid::of_folder);
    let uid = names.chain(PodUid::of_folder(STATIC_POD)).next();
    for version in [Version::V1, Version::V2] {
        let (cpu, used) = (cpu_time(version, input), number(input).unwrap_or(u64::MAX));
        let memory = memory_used(version, used, input);
        assert!(memory.is_none_or(|bytes| bytes > 0 && bytes <= used), "{memory:?} of {used}");
        let all: Vec<PodUsage> =
            uid.clone().map(|uid| PodUsage { uid, cpu, memory }).into_iter().collect();
        let shown = json(&pods(&PodUsages { pods: all.clone(), omitted: 0 }, UNIX_EPOCH));
        for (shown, usage) in shown["pods"].as_array().into_iter().flatten().zip(&all) {
            assert_eq!(shown["uid"], usage.uid.as_str());
            assert_eq!(shown["cpu_seconds_total"].is_f64(), cpu.is_some(), "{shown}");
            assert_eq!(shown["memory_used_bytes"].as_u64(), memory);
        }
    }
}

const STATIC_POD: &str = "pod04dbdd5b3b5b2a3a8c3fd1f3ad5f4a4e";

pub(crate) fn cgroup_names() -> Vec<Vec<u8>> {
    let names = [
        STATIC_POD,
        "pod8b1f4a9e-0d4c-4a63-9d6e-2f6a1c0b7e55",
        "kubelet-kubepods-burstable-pod8b1f4a9e_0d4c_4a63_9d6e_2f6a1c0b7e55.slice",
    ];
    vec![names.join("\n").into()]
}

/// A line of the GPU probe that parses as a GPU's report, or as a question for a context or its answer, stays the same
/// when it is written and parsed again. The reason of an answer is cut off before that.
pub(crate) fn gpu_report(input: &[u8]) {
    for line in text(input).into_iter().flat_map(str::lines) {
        if let Some(gpu) = GpuReport::parse(line) {
            assert_eq!(GpuReport::parse(&gpu.to_string()), Some(gpu));
        }
        if let Some(question) = Question::parse(line) {
            assert_eq!(question.to_string(), line);
        }
        if let Some(answer) = Answer::parse(line) {
            let written = answer.to_string();
            assert!(written.len() <= MAX_LINE, "{written}");
            assert_eq!(Answer::parse(&written).map(|again| again.to_string()), Some(written));
        }
    }
}

pub(crate) fn gpu_reports() -> Vec<Vec<u8>> {
    let text = "0 GPU-8f2c0001 37 512 23028 41 60500\n1 GPU-77aa0002 lost\n2 GPU-1 - - - - -\n.\n";
    let words =
        "GPU-1 none\nGPU-1 mps /run/nvidia-mps\npassed\nfailed CUDA error 802\nunknown no memory\n";
    vec![text.into(), words.into()]
}
