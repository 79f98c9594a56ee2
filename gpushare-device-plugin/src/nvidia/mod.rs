//! The CDI specification of NVIDIA's container toolkit on this node, and its problems.
//!
//! The GPU's device nodes and libraries come from NVIDIA's CDI specification ([`spec`]), which this plugin does not
//! write. After an upgrade of the driver, or when a GPU was added, it may be missing or old. Containers then fail to
//! start, or start with libraries of another driver. [`crate::cdi_watch`] checks it periodically and reports on the
//! Node.

pub(crate) mod runtime;
pub mod spec;

use std::path::PathBuf;

use placement::gpu::Closed;

use crate::gpus::closed::ClosedGpus;
use crate::gpus::{Gpu, Gpus};
use spec::{DeviceLookup, Spec, Specs};

/// A problem of NVIDIA's CDI specification. The texts become events of the Node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Problem {
    /// There is no specification of the kind.
    #[error(
        "no CDI specification of {kind} in {folders}, so GPU containers cannot start. Run `nvidia-ctk cdi generate \
         --device-name-strategy=uuid --output=/var/run/cdi/nvidia.yaml` on the node, or enable \
         nvidia-cdi-refresh.service"
    )]
    Absent {
        /// The kind.
        kind: String,
        /// The searched folders.
        folders: String,
    },
    /// No file has a device for a GPU.
    #[error(
        "NVIDIA's CDI specification has no device {kind}={gpu}, so containers on that GPU cannot start. It is older \
         than \
         the GPU, or names GPUs by index: generate it again with --device-name-strategy=uuid"
    )]
    GpuMissing {
        /// The kind.
        kind: String,
        /// The GPU's UUID.
        gpu: String,
    },
    /// The only device is `all`, as where the toolkit runs in WSL2.
    #[error(
        "NVIDIA's CDI specification has the device {kind}=all and none of a single GPU, as in WSL2, so containers \
         cannot get the GPU {gpu} alone by CDI: run the device plugin with --response=mounts"
    )]
    OnlyAll {
        /// The kind.
        kind: String,
        /// The GPU's UUID.
        gpu: String,
    },
    /// The device of a GPU has no device node.
    #[error(
        "the CDI device {kind}={gpu} in {path} has no device node, so containers do not see that GPU: generate the \
         specification again with nvidia-ctk"
    )]
    NoNode {
        /// The kind.
        kind: String,
        /// The GPU's UUID.
        gpu: String,
        /// The file.
        path: PathBuf,
    },
    /// The device of a GPU lacks a device node that CUDA needs.
    #[error(
        "the CDI device {kind}={gpu} in {path} gives containers no {nodes}, so CUDA finds no GPU in them although \
         nvidia-smi does. The specification is older than these device nodes: run `nvidia-modprobe -u -c 0` on the \
         node, and generate it again with nvidia-ctk"
    )]
    MissingNode {
        /// The kind.
        kind: String,
        /// The GPU's UUID.
        gpu: String,
        /// The file.
        path: PathBuf,
        /// The paths of the missing nodes, with commas between them.
        nodes: String,
    },
    /// Two files of one folder have the device of a GPU.
    #[error(
        "both {one} and {two} have the CDI device {kind}={gpu}, so the container runtime uses neither: remove the \
         older file"
    )]
    Twice {
        /// The kind.
        kind: String,
        /// The GPU's UUID.
        gpu: String,
        /// A file.
        one: PathBuf,
        /// The other.
        two: PathBuf,
    },
    /// The file is for another driver than the one that runs.
    #[error(
        "{path} was written for driver {written_for}, and {running} runs, so containers get libraries that are gone: \
         generate it again with nvidia-ctk"
    )]
    OtherDriver {
        /// The file.
        path: PathBuf,
        /// The version in the file.
        written_for: String,
        /// The version that NVML reports.
        running: String,
    },
    /// A file cannot be read, and a GPU has no device.
    #[error("the CDI specification {path} cannot be read: {why}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error.
        why: String,
    },
}

impl Problem {
    /// The label `problem` of `plimsoll_gpu_cdi_problems`.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Absent { .. } => "absent",
            Self::GpuMissing { .. } => "card_missing",
            Self::OnlyAll { .. } => "only_all",
            Self::NoNode { .. } => "no_node",
            Self::MissingNode { .. } => "missing_node",
            Self::Twice { .. } => "twice",
            Self::OtherDriver { .. } => "other_driver",
            Self::Unreadable { .. } => "unreadable",
        }
    }

    /// The reason of its event.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Absent { .. } => "CDISpecificationAbsent",
            Self::GpuMissing { .. } => "CDICardMissing",
            Self::OnlyAll { .. } => "CDIOnlyAll",
            Self::NoNode { .. } => "CDINoDeviceNode",
            Self::MissingNode { .. } => "CDIDeviceNodeMissing",
            Self::Twice { .. } => "CDIDeviceTwice",
            Self::OtherDriver { .. } => "CDIOtherDriver",
            Self::Unreadable { .. } => "CDISpecificationUnreadable",
        }
    }

    /// All labels.
    pub const LABELS: [&str; 8] = [
        "absent",
        "card_missing",
        "only_all",
        "no_node",
        "missing_node",
        "twice",
        "other_driver",
        "unreadable",
    ];

    /// Adds the GPUs on which no container can start because of it.
    fn close(&self, closed: &mut ClosedGpus) {
        match self {
            Self::Absent { .. } | Self::OtherDriver { .. } => closed.all = Some(Closed::Cdi),
            Self::GpuMissing { gpu, .. }
            | Self::OnlyAll { gpu, .. }
            | Self::NoNode { gpu, .. }
            | Self::MissingNode { gpu, .. }
            | Self::Twice { gpu, .. } => {
                closed.gpus.insert(gpu.as_str().into(), Closed::Cdi);
            }
            // Another problem says which GPUs it concerns.
            Self::Unreadable { .. } => {}
        }
    }
}

/// The GPUs on which no container can start because of these problems.
pub fn closed_gpus(problems: &[Problem]) -> ClosedGpus {
    let mut closed = ClosedGpus::default();
    problems.iter().for_each(|problem| problem.close(&mut closed));
    closed
}

/// The kind of the CDI devices in NVIDIA's own specification, one for each GPU, named by UUID: what `nvidia-ctk cdi
/// generate` writes unless told otherwise.
pub const KIND: &str = "nvidia.com/gpu";

/// The location of NVIDIA's specification.
#[derive(Debug, Clone)]
pub struct CdiLocation {
    /// The runtime's CDI folders, in its order: the last has the highest priority.
    pub folders: Vec<PathBuf>,
    /// The kind of NVIDIA's devices, `nvidia.com/gpu`.
    pub kind: String,
}

impl CdiLocation {
    /// Reads the specifications.
    pub fn specs(&self) -> Specs {
        Specs::read(&self.folders, &self.kind)
    }

    /// The problems for these GPUs, sorted.
    pub fn problems(&self, specs: &Specs, gpus: &Gpus) -> Vec<Problem> {
        let mut problems = self.find_problems(specs, gpus);
        problems.sort();
        problems.dedup();
        problems
    }

    fn find_problems(&self, specs: &Specs, gpus: &Gpus) -> Vec<Problem> {
        let mut problems = Vec::new();
        if specs.is_empty() && !gpus.is_empty() {
            let folders: Vec<String> =
                self.folders.iter().map(|folder| folder.display().to_string()).collect();
            problems.push(Problem::Absent { kind: self.kind.clone(), folders: folders.join(", ") });
        } else {
            // NVIDIA's toolkit writes no device for a GPU that is lost or in MIG mode.
            for gpu in gpus.healthy() {
                problems.extend(self.gpu_problem(specs, gpu, gpus.driver()));
            }
        }
        // An unreadable file may be of another vendor.
        if !problems.is_empty() {
            for (path, why) in &specs.unreadable {
                problems.push(Problem::Unreadable { path: path.clone(), why: why.clone() });
            }
        }
        problems
    }

    fn gpu_problem(&self, specs: &Specs, gpu: &Gpu, running: Option<&str>) -> Option<Problem> {
        let (kind, minor, gpu) = (self.kind.clone(), gpu.minor, gpu.uuid.to_string());
        match specs.device(&gpu) {
            DeviceLookup::None if specs.has_only_all() => Some(Problem::OnlyAll { kind, gpu }),
            DeviceLookup::None => Some(Problem::GpuMissing { kind, gpu }),
            DeviceLookup::Twice(one, two) => {
                Some(Problem::Twice { kind, gpu, one: one.into(), two: two.into() })
            }
            DeviceLookup::One(spec, device) if !device.has_nodes => {
                Some(Problem::NoNode { kind, gpu, path: spec.path.clone() })
            }
            DeviceLookup::One(spec, device) => {
                let path = spec.path.clone();
                other_driver(spec, running).or_else(|| {
                    let nodes = device.missing_nodes(minor).join(", ");
                    (!nodes.is_empty()).then_some(Problem::MissingNode { kind, gpu, path, nodes })
                })
            }
        }
    }
}

fn other_driver(spec: &Spec, running: Option<&str>) -> Option<Problem> {
    let written_for = spec.driver.as_deref()?;
    let running = running?;
    (written_for != running).then(|| Problem::OtherDriver {
        path: spec.path.clone(),
        written_for: written_for.to_owned(),
        running: running.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;
    use crate::fixtures::{A, B, gpus, with_unhealthy};
    use crate::gpus::Unhealthy;

    const NODES_OF_ALL: [&str; 3] = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"];

    fn spec(devices: &[&str], driver: &str) -> String {
        spec_with(devices, driver, &NODES_OF_ALL)
    }

    /// A specification that gives the containers of each of its devices these nodes beside `/dev/nvidia0`.
    fn spec_with(devices: &[&str], driver: &str, of_all: &[&str]) -> String {
        let nodes = json!({ "deviceNodes": [{ "path": "/dev/nvidia0" }] });
        let library = json!({ "hostPath": format!("/lib/libcuda.so.{driver}") });
        let mut named = Vec::new();
        for name in devices {
            named.push(json!({ "name": name, "containerEdits": nodes }));
        }
        let of_all: Vec<_> = of_all.iter().map(|path| json!({ "path": path })).collect();
        let edits = json!({ "mounts": [library], "deviceNodes": of_all });
        json!({ "kind": "nvidia.com/gpu", "devices": named, "containerEdits": edits }).to_string()
    }

    fn labels(files: &[(&str, &str)], running: Option<&str>) -> Vec<&'static str> {
        problems(files, running).iter().map(Problem::label).collect()
    }

    fn problems(files: &[(&str, &str)], running: Option<&str>) -> Vec<Problem> {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let location =
            CdiLocation { folders: vec![dir.path().into()], kind: "nvidia.com/gpu".to_owned() };
        let gpus = gpus(&[(A, 4), (B, 4)]).with_driver(running.map(str::to_owned));
        location.problems(&location.specs(), &gpus)
    }

    #[test]
    fn a_specification_with_all_gpus_for_the_running_driver_is_fine() {
        let whole = spec(&[A, B], "580.95.05");
        assert!(labels(&[("nvidia.json", &whole)], Some("580.95.05")).is_empty());
        assert!(labels(&[("nvidia.json", &whole)], None).is_empty(), "unknown is not another");
        assert!(labels(&[("nvidia.json", &whole), ("x.json", "{")], None).is_empty());
    }

    #[test]
    fn a_missing_file_and_a_missing_gpu_are_problems() {
        assert_eq!(labels(&[], None), ["absent"]);
        assert_eq!(labels(&[("x.json", "{")], None), ["absent", "unreadable"]);
        assert_eq!(labels(&[("nvidia.json", &spec(&[A, "1"], "1.2"))], None), ["card_missing"]);
    }

    #[test]
    fn where_all_is_the_only_device_the_text_names_the_other_ways_to_a_gpu() {
        let problems = problems(&[("nvidia.json", &spec(&["all"], "1.2"))], None);
        assert_eq!(problems.iter().map(Problem::label).collect::<Vec<_>>(), ["only_all"; 2]);
        let text = problems[0].to_string();
        assert!(
            text.contains("--response=mounts") && !text.contains("device-name-strategy"),
            "{text}"
        );
    }

    /// Why each of the GPUs A and B is closed.
    fn closed(files: &[(&str, &str)], running: Option<&str>) -> [Option<Closed>; 2] {
        let closed = closed_gpus(&problems(files, running));
        [A, B].map(|gpu| closed.of(&gpu.into()))
    }

    #[test]
    fn a_problem_closes_the_gpus_that_it_concerns() {
        let cdi = Some(Closed::Cdi);
        let whole = spec(&[A, B], "1.2");
        assert_eq!(closed(&[("nvidia.json", &whole)], Some("1.2")), [None, None]);
        assert_eq!(closed(&[("nvidia.json", &spec(&[A], "1.2"))], Some("1.2")), [None, cdi]);
        assert_eq!(closed(&[], None), [cdi, cdi]);
        assert_eq!(closed(&[("nvidia.json", &whole)], Some("1.3")), [cdi, cdi]);
        let other = spec(&[B], "1.2");
        let twice = [("a.json", &*whole), ("b.json", &*other)];
        assert_eq!(closed(&twice, Some("1.2")), [None, cdi]);
    }

    #[test]
    fn a_gpu_that_is_unhealthy_may_be_missing() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("nvidia.json"), spec(&[A], "1.2")).unwrap();
        let location =
            CdiLocation { folders: vec![dir.path().into()], kind: "nvidia.com/gpu".to_owned() };
        let gpus = gpus(&[(A, 4), (B, 4)]);
        for why in [Unhealthy::Lost, Unhealthy::Mig] {
            let problems = location.problems(&location.specs(), &with_unhealthy(&gpus, B, why));
            assert_eq!(problems, [], "{why}");
        }
    }

    #[test]
    fn a_file_for_another_driver_is_one_problem_for_all_its_gpus() {
        let old = spec(&[A, B], "570.1");
        assert_eq!(labels(&[("nvidia.json", &old)], Some("580.95.05")), ["other_driver"]);
    }

    #[test]
    fn a_device_of_two_files_or_without_a_node_is_a_problem() {
        let whole = spec(&[A, B], "1.2");
        assert_eq!(labels(&[("a.json", &whole), ("b.json", &whole)], None), ["twice", "twice"]);
        let bare =
            format!(r#"{{"kind":"nvidia.com/gpu","devices":[{{"name":"{A}"}},{{"name":"{B}"}}]}}"#);
        assert_eq!(labels(&[("a.json", &bare)], None), ["no_node", "no_node"]);
    }

    #[test]
    fn a_file_that_is_older_than_a_device_node_of_cuda_closes_its_gpus() {
        let before = spec_with(&[A, B], "1.2", &["/dev/nvidiactl"]);
        let files = [("nvidia.json", &*before)];
        assert_eq!(labels(&files, Some("1.2")), ["missing_node", "missing_node"]);
        assert_eq!(closed(&files, None), [Some(Closed::Cdi); 2]);
        let text = problems(&files, None)[0].to_string();
        assert!(text.contains("no /dev/nvidia-uvm,") && text.contains("nvidia-modprobe"), "{text}");
        assert_eq!(labels(&files, Some("1.3")), ["other_driver"], "which is written anew anyway");
    }

    #[test]
    fn the_nodes_of_all_gpus_may_stand_in_each_device() {
        let nodes = ["/dev/nvidia0", "/dev/nvidia-uvm", "/dev/nvidiactl"];
        let nodes = nodes.map(|path| json!({ "path": path, "hostPath": "/run/driver/dev/x" }));
        let devices =
            [A, B].map(|name| json!({ "name": name, "containerEdits": { "deviceNodes": nodes } }));
        let whole = json!({ "kind": "nvidia.com/gpu", "devices": devices }).to_string();
        assert!(labels(&[("nvidia.json", &whole)], None).is_empty());
    }

    #[test]
    fn a_device_with_the_node_of_another_gpu_is_a_problem() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("nvidia.json"), spec(&[A, B], "1.2")).unwrap();
        let location =
            CdiLocation { folders: vec![dir.path().into()], kind: "nvidia.com/gpu".to_owned() };
        let numbered = gpus(&[(A, 4), (B, 4)]);
        let numbered = numbered.iter().map(|gpu| Gpu { minor: Some(gpu.index), ..gpu.clone() });
        let problems = location.problems(&location.specs(), &Gpus::new(numbered.collect()));
        let [Problem::MissingNode { gpu, nodes, .. }] = &problems[..] else {
            panic!("{problems:?}")
        };
        assert_eq!((gpu.as_str(), nodes.as_str()), (B, "/dev/nvidia1"));
    }

    #[test]
    fn every_text_names_the_fix() {
        let path = PathBuf::from("/etc/cdi/nvidia.yaml");
        let kind = "nvidia.com/gpu".to_owned();
        let gpu = A.to_owned();
        let all = [
            Problem::Absent { kind: kind.clone(), folders: "/etc/cdi".to_owned() },
            Problem::GpuMissing { kind: kind.clone(), gpu: gpu.clone() },
            Problem::OnlyAll { kind: kind.clone(), gpu: gpu.clone() },
            Problem::NoNode { kind: kind.clone(), gpu: gpu.clone(), path: path.clone() },
            Problem::MissingNode {
                kind: kind.clone(),
                gpu: gpu.clone(),
                path: path.clone(),
                nodes: "/dev/nvidia-uvm".to_owned(),
            },
            Problem::Twice { kind, gpu, one: path.clone(), two: path.clone() },
            Problem::OtherDriver { path, written_for: "1.2".into(), running: "1.3".into() },
        ];
        for problem in all {
            let text = problem.to_string();
            let fixes = ["generate", "remove", "--response="];
            assert!(fixes.iter().any(|fix| text.contains(fix)) && text.len() < 1024, "{text}");
        }
    }
}
