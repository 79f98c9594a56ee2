//! NVIDIA's CDI specification as the container toolkit writes it (`nvidia-ctk cdi generate`, `nvidia-cdi-refresh`):
//! which devices it has, for which driver it was written, and which hooks its devices carry.
//!
//! Invariants: the folders are read as a container runtime reads them: `*.json` and `*.yaml`, a later folder before an
//! earlier one, and a device that two files of one folder have counts as absent. What is read is bounded.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// The largest file that is read, in bytes. A specification of eight GPUs takes some 40 KiB.
const MAX_FILE: u64 = 4 << 20;
/// Files of a folder that are read.
const MAX_FILES: usize = 256;

/// The toolkit's hook that makes the driver limit a container's memory. In NVIDIA's container toolkit since 1.20.1.
pub const MEMORY_LIMIT_HOOK: &str = "apply-cuda-memory-limits";

/// Libraries of the driver whose file names end with its version.
const DRIVER_LIBRARIES: [&str; 2] = ["libcuda.so.", "libnvidia-ml.so."];

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CdiFile {
    kind: Option<String>,
    devices: Option<Vec<NamedDevice>>,
    container_edits: Option<Edits>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NamedDevice {
    name: String,
    container_edits: Option<Edits>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Edits {
    device_nodes: Option<Vec<DeviceNode>>,
    mounts: Option<Vec<Mount>>,
    hooks: Option<Vec<Hook>>,
}

#[derive(Debug, Deserialize)]
struct DeviceNode {
    path: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mount {
    host_path: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Hook {
    args: Option<Vec<String>>,
}

/// One file of the kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// Its path.
    pub path: PathBuf,
    /// The driver that it was written for, such as `580.95.05`, from the names of the libraries that it mounts; `None`
    /// if no name has a version.
    pub driver: Option<String>,
    /// Its devices, by name.
    pub devices: BTreeMap<String, Device>,
}

/// A device of a [`Spec`], including the edits that the file applies to all of its devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Whether it has a device node of its own.
    pub has_nodes: bool,
    /// The paths of the device nodes in a container that gets it.
    pub nodes: BTreeSet<String>,
    /// Whether it has [`MEMORY_LIMIT_HOOK`].
    pub limits_memory: bool,
}

/// All files of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Specs {
    /// By folder, the one of the highest priority last.
    folders: Vec<Vec<Spec>>,
    /// Files that could not be read, of any kind, with the error.
    pub unreadable: Vec<(PathBuf, String)>,
}

/// The device that a runtime selects for a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceLookup<'a> {
    /// This device of this file.
    One(&'a Spec, &'a Device),
    /// Two files of one folder have it: the runtime uses neither.
    Twice(&'a Path, &'a Path),
    /// No file has it.
    None,
}

impl Specs {
    /// Reads the files of `kind` in these folders, in the runtime's order: the last folder has the highest priority. A
    /// missing folder has none.
    pub fn read(folders: &[PathBuf], kind: &str) -> Self {
        let mut specs = Self::default();
        for folder in folders {
            let mut found = Vec::new();
            for path in files(folder) {
                match read(&path).and_then(|text| parse(&text, kind)) {
                    Ok(Some(read)) => found.push(Spec { path, ..read }),
                    Ok(None) => {}
                    Err(why) => specs.unreadable.push((path, why)),
                }
            }
            specs.folders.push(found);
        }
        specs
    }

    /// Whether there is no file of the kind.
    pub fn is_empty(&self) -> bool {
        self.folders.iter().all(Vec::is_empty)
    }

    /// Whether there are devices, and each is named `all`.
    pub fn has_only_all(&self) -> bool {
        let mut names =
            self.folders.iter().flatten().flat_map(|spec| spec.devices.keys()).peekable();
        names.peek().is_some() && names.all(|name| name == "all")
    }

    /// The device of that name.
    pub fn device(&self, name: &str) -> DeviceLookup<'_> {
        for folder in self.folders.iter().rev() {
            let mut having = folder.iter().filter_map(|spec| Some((spec, spec.devices.get(name)?)));
            match (having.next(), having.next()) {
                (Some((spec, device)), None) => return DeviceLookup::One(spec, device),
                (Some((one, _)), Some((two, _))) => {
                    return DeviceLookup::Twice(&one.path, &two.path);
                }
                (None, _) => {}
            }
        }
        DeviceLookup::None
    }
}

/// The specifications of a folder, by name.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut paths: BTreeSet<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| {
        path.extension().is_some_and(|extension| extension == "json" || extension == "yaml")
    });
    paths.into_iter().take(MAX_FILES).collect()
}

fn read(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let file = fs::File::open(path).map_err(|error| error.to_string())?;
    let read = file.take(MAX_FILE + 1).read_to_string(&mut text);
    read.map_err(|error| error.to_string())?;
    if text.len() as u64 > MAX_FILE {
        return Err(format!("longer than {MAX_FILE} bytes"));
    }
    Ok(text)
}

/// Device nodes that CUDA opens in every container, beside the GPU's own `/dev/nvidiaN`. The toolkit writes those that
/// are there when it runs, and `/dev/nvidia-uvm` is not before its kernel module is loaded.
const CUDA_NODES: [&str; 2] = ["/dev/nvidiactl", "/dev/nvidia-uvm"];

/// What the names of other device nodes begin with where CUDA has its own: WSL2, and the GPUs of Tegra.
const OTHER_DRIVERS_NODES: [&str; 4] = ["/dev/dxg", "/dev/nvgpu", "/dev/nvhost", "/dev/nvmap"];

impl Device {
    /// The device nodes without which CUDA finds no GPU in a container. `minor` is N of the GPU's `/dev/nvidiaN`,
    /// where known.
    pub fn missing_nodes(&self, minor: Option<u32>) -> Vec<String> {
        let is_others =
            |node: &String| OTHER_DRIVERS_NODES.iter().any(|others| node.starts_with(others));
        if self.nodes.iter().any(is_others) {
            return Vec::new();
        }
        let own = minor.map(|minor| format!("/dev/nvidia{minor}"));
        let is_missing = |node: &String| !self.nodes.contains(node);
        own.into_iter().chain(CUDA_NODES.map(str::to_owned)).filter(is_missing).collect()
    }
}

/// Parses a specification; `None` if it is of another kind. The path is left empty.
///
/// # Errors
/// If it is neither YAML nor JSON of CDI's schema.
pub fn parse(text: &str, kind: &str) -> Result<Option<Spec>, String> {
    // JSON is YAML too.
    let file: CdiFile =
        serde_saphyr::from_str(text).map_err(|error| first_line(&error.to_string()))?;
    if file.kind.as_deref() != Some(kind) {
        return Ok(None);
    }
    let common = file.container_edits.unwrap_or_default();
    let mut devices = BTreeMap::new();
    let mut driver = common.driver();
    for NamedDevice { name, container_edits } in file.devices.unwrap_or_default() {
        let own = container_edits.unwrap_or_default();
        driver = driver.or_else(|| own.driver());
        let device = Device {
            has_nodes: own.nodes().next().is_some(),
            nodes: common.nodes().chain(own.nodes()).map(str::to_owned).collect(),
            limits_memory: own.limits_memory() || common.limits_memory(),
        };
        devices.insert(name, device);
    }
    Ok(Some(Spec { path: PathBuf::new(), driver, devices }))
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

impl Edits {
    fn nodes(&self) -> impl Iterator<Item = &str> {
        self.device_nodes.iter().flatten().filter_map(|node| node.path.as_deref())
    }

    fn limits_memory(&self) -> bool {
        let limits = |hook: &Hook| hook.args.iter().flatten().any(|arg| arg == MEMORY_LIMIT_HOOK);
        self.hooks.iter().flatten().any(limits)
    }

    fn driver(&self) -> Option<String> {
        let driver = |mount: &Mount| version(mount.host_path.as_deref()?).map(str::to_owned);
        self.mounts.iter().flatten().find_map(driver)
    }
}

/// The version in the name of a driver's library: `580.95.05` of `…/libcuda.so.580.95.05`, nothing of `libcuda.so.1`.
fn version(path: &str) -> Option<&str> {
    let (_, file) = path.rsplit_once('/')?;
    let version = DRIVER_LIBRARIES.iter().find_map(|library| file.strip_prefix(library))?;
    let is_version = version.contains('.') && version.split('.').all(is_number);
    if is_version { Some(version) } else { None }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `nvidia-ctk cdi generate` of toolkit 1.20.1 writes it, cut down.
    const YAML: &str = r#"---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: "0"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
    hooks:
    - hookName: createRuntime
      path: /usr/bin/nvidia-ctk
      args: [nvidia-ctk, hook, apply-cuda-memory-limits, --gpu-id, GPU-a]
- name: GPU-a
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
    hooks:
    - hookName: createRuntime
      path: /usr/bin/nvidia-ctk
      args: [nvidia-ctk, hook, apply-cuda-memory-limits, --gpu-id, GPU-a]
- name: GPU-b
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia1
containerEdits:
  deviceNodes:
  - path: /dev/nvidia-uvm
  - path: /dev/nvidiactl
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  hooks:
  - hookName: createContainer
    path: /usr/bin/nvidia-ctk
    args: [nvidia-ctk, hook, update-ldcache]
  mounts:
  - hostPath: /usr/lib/libcuda.so.1
    containerPath: /usr/lib/libcuda.so.1
  - hostPath: /usr/lib/libcuda.so.615.12.03
    containerPath: /usr/lib/libcuda.so.615.12.03
"#;
    const KIND: &str = "nvidia.com/gpu";

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    fn spec_of(device: &str) -> String {
        format!(r#"{{"kind":"{KIND}","devices":[{{"name":"{device}"}}]}}"#)
    }

    #[test]
    fn devices_hooks_and_the_driver_are_read() {
        let spec = parse(YAML, KIND).unwrap().unwrap();
        assert_eq!(spec.driver.as_deref(), Some("615.12.03"));
        for (name, own, limits_memory) in
            [("GPU-a", "/dev/nvidia0", true), ("GPU-b", "/dev/nvidia1", false)]
        {
            let nodes = [own, "/dev/nvidia-uvm", "/dev/nvidiactl"].map(str::to_owned).into();
            assert_eq!(spec.devices[name], Device { has_nodes: true, nodes, limits_memory });
        }
        assert_eq!(parse(YAML, "example.com/nic").unwrap(), None);
    }

    fn missing(nodes: &[&str], minor: Option<u32>) -> Vec<String> {
        let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
        Device { has_nodes: true, nodes, limits_memory: false }.missing_nodes(minor)
    }

    #[test]
    fn cuda_needs_the_gpus_own_node_and_two_of_all_gpus() {
        let all = ["/dev/nvidia3", "/dev/nvidia-uvm", "/dev/nvidiactl"];
        assert!(missing(&all, Some(3)).is_empty() && missing(&all, None).is_empty());
        assert_eq!(missing(&all, Some(0)), ["/dev/nvidia0"], "another GPU's");
        assert_eq!(missing(&["/dev/nvidia3", "/dev/nvidiactl"], Some(3)), ["/dev/nvidia-uvm"]);
        let without = missing(&["/dev/nvidia-uvm-tools", "/dev/nvidia30"], Some(3));
        assert_eq!(without, ["/dev/nvidia3", "/dev/nvidiactl", "/dev/nvidia-uvm"]);
    }

    #[test]
    fn of_wsl_and_tegra_no_node_is_said_to_be_missing() {
        for node in ["/dev/dxg", "/dev/nvhost-ctrl", "/dev/nvmap", "/dev/nvgpu/igpu0/ctrl"] {
            assert!(missing(&[node], Some(0)).is_empty(), "{node}");
        }
    }

    #[test]
    fn a_later_folder_goes_first_and_a_device_of_two_files_of_one_folder_is_none() {
        let early = folder(&[("nvidia.yaml", YAML), ("x.json", &spec_of("GPU-x"))]);
        let late = folder(&[("n.json", &spec_of("GPU-a")), ("y.json", &spec_of("GPU-b"))]);
        fs::write(late.path().join("z.yaml"), spec_of("GPU-b")).unwrap();
        let specs = Specs::read(&[early.path().into(), late.path().into()], KIND);
        let DeviceLookup::One(spec, device) = specs.device("GPU-a") else { panic!("{specs:?}") };
        assert!(spec.path.ends_with("n.json") && !device.has_nodes);
        assert!(matches!(specs.device("GPU-b"), DeviceLookup::Twice(..)));
        assert!(matches!(specs.device("GPU-x"), DeviceLookup::One(..)));
        assert_eq!(specs.device("GPU-c"), DeviceLookup::None);
    }

    #[test]
    fn files_of_other_names_and_other_kinds_are_left_out_and_broken_ones_are_told() {
        let other = r#"{"kind":"example.com/nic","devices":[]}"#;
        let dir =
            folder(&[("a.json", other), ("b.yml", YAML), ("c.yaml", "kind: ["), ("d.tmp", YAML)]);
        let specs = Specs::read(&[dir.path().into(), "/nonexistent".into()], KIND);
        assert!(specs.is_empty());
        let [(path, why)] = &specs.unreadable[..] else { panic!("{specs:?}") };
        assert!(path.ends_with("c.yaml") && !why.is_empty());
    }

    #[test]
    fn a_library_without_a_version_tells_no_driver() {
        assert_eq!(version("/usr/lib/libcuda.so.1"), None);
        assert_eq!(version("/usr/lib/libcuda.so.580.95.05"), Some("580.95.05"));
        assert_eq!(version("/usr/lib/libcudadebugger.so.580.95.05"), None);
        assert_eq!(version("libcuda.so.580.95.05"), None);
    }
}
