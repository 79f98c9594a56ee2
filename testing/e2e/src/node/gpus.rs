//! Owns the GPUs of a node: device nodes made by `mknod`, the stand-in driver library with its script, and the CDI
//! file that NVIDIA's toolkit would have written.
//!
//! Only the driver is a stand-in. Kubelet, containerd and runc treat such a GPU as they treat a real one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use serde_json::{Value, json};

use super::spec::NodeSpec;

/// The number of GPUs of each node.
pub const GPUS: u8 = 4;
/// The memory of each GPU in MiB.
pub const GPU_MIB: u64 = 16 * 1024;
/// The major number of NVIDIA's character devices.
pub const MAJOR: u32 = 195;
/// The minor number of `/dev/nvidiactl`, which every GPU container gets.
pub const CONTROL_MINOR: u32 = 255;
/// The minor number of `/dev/nvidia-uvm`, which every GPU container gets. The real one has another major number, which
/// the kernel assigns; this is a free one of NVIDIA's.
pub const UVM_MINOR: u32 = 253;

/// The folder of the stand-in driver, inside a node.
pub const DRIVER: &str = "/var/lib/plimsoll-node/nvidia";
const DEVICES: &str = "/var/lib/plimsoll-node/dev";
/// The first driver that limits memory, and that of the other nodes.
const DRIVERS: [&str; 2] = ["615.10", "570.0"];

/// A stand-in of NVIDIA's `nvidia-ctk`, which a runtime calls with the container's state on standard input. It notes
/// its arguments, and the variables of the limit as the container's OCI specification has them, in a file that bears
/// the container's id.
const NVIDIA_CTK: &str = r#"#!/bin/sh
export PATH=/usr/bin:/bin
field() { sed -n 's/.*"'"$1"'" *: *"\([^"]*\)".*/\1/p'; }
state=$(cat)
bundle=$(printf '%s' "$state" | field bundle)
id=$(printf '%s' "$state" | field id)
{ echo "$@"; grep -o '"NVIDIA_GPU_MEMORY_[A-Z]*=[^"]*"' "$bundle/config.json" || true; } > "${0%/*}/hook-$id"
"#;

/// One GPU as the driver reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// The UUID, which names the GPU in CDI and in every annotation.
    pub uuid: String,
    /// The minor number of its device node `/dev/nvidiaN`.
    pub minor: u8,
}

/// The GPUs of a node, in the driver's order.
pub fn of(node: &NodeSpec) -> Vec<Gpu> {
    (0..GPUS).map(|minor| Gpu { uuid: uuid(node, minor), minor }).collect()
}

fn uuid(node: &NodeSpec, minor: u8) -> String {
    format!("GPU-{:02x}{minor:02x}c0de-5afe-4000-8000-{:012x}", 0xa0 + node.number, minor)
}

/// Below the node's folder.
const CDI_FILE: &str = "etc/cdi/nvidia.yaml";

/// Creates the device nodes, the CDI file and the driver's script below `root`, the node's folder on this host.
pub fn create(node: &NodeSpec, root: &Path) -> Result<()> {
    let gpus = of(node);
    make_devices(&gpus, &inside(root, DEVICES))?;
    fs::create_dir_all(root.join("etc/cdi"))?;
    fs::create_dir_all(inside(root, DRIVER))?;
    write_cdi(root, &cdi_spec(&gpus))?;
    write_script(root, &script(&gpus))
}

/// Has the node's driver and container toolkit limit a container's memory, as far as the device plugin can tell, or
/// not.
pub fn set_memory_limits(node: &NodeSpec, root: &Path, can: bool) -> Result<()> {
    let program = inside(root, DRIVER).join("nvidia-ctk");
    let mut spec = cdi_spec(&of(node));
    if can {
        fs::write(&program, NVIDIA_CTK)?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        for device in spec["devices"].as_array_mut().into_iter().flatten() {
            let uuid = device["name"].clone();
            device["containerEdits"]["hooks"] = json!([{
                "hookName": "createRuntime", "path": format!("{DRIVER}/nvidia-ctk"),
                "args": ["nvidia-ctk", "hook", "apply-cuda-memory-limits", "--gpu-id", uuid],
            }]);
        }
    }
    write_cdi(root, &spec)?;
    let mut script = read_script(root)?;
    script["driver"] = json!(DRIVERS[usize::from(!can)]);
    write_script(root, &script)
}

/// Writes the CDI file, or removes it as if NVIDIA's toolkit had not generated it.
pub fn set_cdi(node: &NodeSpec, root: &Path, present: bool) -> Result<()> {
    if present {
        write_cdi(root, &cdi_spec(&of(node)))
    } else {
        fs::remove_file(root.join(CDI_FILE)).context("cannot remove the CDI file")
    }
}

/// What the hook of [`set_memory_limits`] was called with for a container: its arguments, then the variables.
pub fn hook_calls(root: &Path, container: &str) -> Result<Vec<String>> {
    let path = inside(root, DRIVER).join(format!("hook-{container}"));
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text.lines().map(str::to_owned).collect())
}

fn write_cdi(root: &Path, spec: &Value) -> Result<()> {
    let path = root.join(CDI_FILE);
    // A runtime does not read files of other endings.
    let scratch = path.with_extension("new");
    fs::write(&scratch, format!("{spec:#}\n"))?;
    fs::rename(&scratch, &path).with_context(|| format!("cannot write {}", path.display()))
}

/// Copies the stand-in driver library to where the programs load it from: it is NVML and CUDA.
pub fn install_driver(root: &Path, library: &Path) -> Result<()> {
    for name in ["libnvidia-ml.so.1", "libcuda.so.1"] {
        fs::copy(library, inside(root, DRIVER).join(name))
            .with_context(|| format!("cannot copy {}", library.display()))?;
    }
    Ok(())
}

/// The driver's script as it is now.
pub fn read_script(root: &Path) -> Result<Value> {
    let path = script_file(root);
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))
}

/// Replaces the driver's script. The driver reads it again by itself.
pub fn write_script(root: &Path, script: &Value) -> Result<()> {
    let path = script_file(root);
    let scratch = path.with_extension("new");
    fs::write(&scratch, format!("{script:#}\n"))?;
    fs::rename(&scratch, &path).with_context(|| format!("cannot write {}", path.display()))
}

fn script_file(root: &Path) -> PathBuf {
    inside(root, DRIVER).join("nvml-script.json")
}

/// The path on this host of a path inside the node.
fn inside(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

fn make_devices(gpus: &[Gpu], folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    let gpus = gpus.iter().map(|gpu| (format!("nvidia{}", gpu.minor), u32::from(gpu.minor)));
    let of_all = [("nvidiactl", CONTROL_MINOR), ("nvidia-uvm", UVM_MINOR)];
    for (name, minor) in gpus.chain(of_all.map(|(name, minor)| (name.to_owned(), minor))) {
        let path = folder.join(name);
        mknodat(CWD, &path, FileType::CharacterDevice, Mode::from(0o666), makedev(MAJOR, minor))
            .with_context(|| format!("cannot make the device node {}", path.display()))?;
    }
    Ok(())
}

fn script(gpus: &[Gpu]) -> Value {
    json!({"driver": DRIVERS[1], "cards": gpus.iter().map(simulated_gpu).collect::<Vec<_>>()})
}

/// GPUs 0 and 2 are linked by NVLink, and so are 1 and 3.
fn simulated_gpu(gpu: &Gpu) -> Value {
    let linked = (gpu.minor + GPUS / 2) % GPUS;
    json!({
        "uuid": gpu.uuid, "index": gpu.minor, "minor": gpu.minor, "model": "NVIDIA A10", "memoryMiB": GPU_MIB,
        "numaNode": 0, "linked": [linked], "usedMiB": 0, "utilisation": 0, "temperature": 40, "powerMilliwatt": 30000,
        "healthy": true, "xid": null
    })
}

/// The shape of `nvidia-ctk cdi generate --device-name-strategy=uuid`: a node a GPU, common edits for all.
fn cdi_spec(gpus: &[Gpu]) -> Value {
    json!({
        "cdiVersion": "0.6.0",
        "kind": "nvidia.com/gpu",
        "devices": gpus.iter().map(cdi_device).collect::<Vec<_>>(),
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "deviceNodes": [device_node("nvidiactl"), device_node("nvidia-uvm")],
        },
    })
}

fn device_node(name: &str) -> Value {
    json!({"path": format!("/dev/{name}"), "hostPath": format!("{DEVICES}/{name}")})
}

fn cdi_device(gpu: &Gpu) -> Value {
    let name = format!("nvidia{}", gpu.minor);
    json!({"name": gpu.uuid, "containerEdits": {"deviceNodes": [device_node(&name)]}})
}
