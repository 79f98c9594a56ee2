//! Our CDI specification: one device for each GPU, with the environment that a container must see, and one for each
//! limit of a container.
//!
//! Invariants: the file is replaced atomically, so a runtime never reads a part of it. A container that restarts refers
//! to its devices again: the device of a GPU stays while this process runs, that of a limit while a container of a pod
//! on this node has it. So the pods of the node bound the file: it has at most [`MAX_LIMITS`] limits for each of them.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use placement::units::PodUid;
use serde_json::{Value, json};

use super::gpu_env;
use crate::gpus::{Gpu, Gpus};
use crate::isolation::limit::Limit;

/// Value of `NVIDIA_VISIBLE_DEVICES` in a container that gets its GPU by CDI. NVIDIA's runtime then adds no
/// devices itself.
pub(crate) const VOID: &str = "void";

/// The largest number of different limits of one pod, far more than pods have. Runtimes read the file, and one pod must
/// not make it large for the others.
pub const MAX_LIMITS: usize = 32;

/// The limits of the containers of pods.
pub type PodLimits = BTreeSet<(PodUid, Limit)>;

/// The file with our specification.
#[derive(Debug)]
pub struct SpecFile {
    path: PathBuf,
    kind: String,
    /// The folder of MPS on the host.
    mps: Option<PathBuf>,
    content: Mutex<Content>,
}

/// The content of the file.
#[derive(Debug, Default)]
struct Content {
    gpus: Gpus,
    in_use: PodLimits,
    /// The limits that an earlier process wrote, until the first [`SpecFile::set_in_use`]: it is not known which are in
    /// use.
    earlier: BTreeSet<Limit>,
}

/// The device of a limit could not be written.
#[derive(Debug, thiserror::Error)]
pub enum CdiError {
    /// The file cannot be replaced.
    #[error(
        "cannot write the CDI specification {path}: {cause}. Mount the host's CDI directory writable"
    )]
    Write {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        cause: io::Error,
    },
    /// The pod has too many limits already.
    #[error(
        "its containers have {MAX_LIMITS} different limits already, as many as a pod may have: give more of them the \
         same GPU memory, \
         gpu-mem-limit and gpu-cores, and create the pod again"
    )]
    TooManyLimits,
}

impl SpecFile {
    /// The file of devices of `kind` (`vendor/class`) in `directory`; existing limits are read from it. `mps` is the
    /// folder of MPS on the host.
    pub fn new(directory: &Path, kind: &str, mps: Option<PathBuf>) -> Self {
        let path = directory.join(format!("{}.json", kind.replace('/', "-")));
        let earlier = fs::read_to_string(&path).map(|text| limits(&text)).unwrap_or_default();
        let content = Mutex::new(Content { earlier, ..Content::default() });
        Self { path, kind: kind.to_owned(), mps, content }
    }

    /// Its path: the kind with `-` for `/`, ending in `.json`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the specification for `gpus` unless the file is up to date. `recorded` are limits of containers by the
    /// kubelet's record, which the file may lack: it may have been deleted before this process began.
    ///
    /// # Errors
    /// If the directory cannot be made or the file cannot be written.
    pub fn write(&self, gpus: &Gpus, recorded: PodLimits) -> Result<(), CdiError> {
        let mut content = self.content();
        content.gpus = gpus.clone();
        content.in_use.extend(recorded);
        self.bring_up_to_date(&content)
    }

    /// Writes the specification again if the file was deleted or changed. Must not be called before the first
    /// [`SpecFile::write`].
    ///
    /// # Errors
    /// As [`SpecFile::write`].
    pub fn restore(&self) -> Result<(), CdiError> {
        self.bring_up_to_date(&self.content())
    }

    /// Adds the device of a pod's limit if it is missing. The container runtime reads the file when it creates the
    /// container.
    ///
    /// # Errors
    /// As [`SpecFile::write`], and if the pod has too many limits.
    pub fn add(&self, pod: &PodUid, limit: Limit) -> Result<(), CdiError> {
        let mut content = self.content();
        let added = (pod.clone(), limit);
        if content.in_use.contains(&added) {
            return self.bring_up_to_date(&content);
        }
        if content.in_use.iter().filter(|(of, _)| of == pod).count() >= MAX_LIMITS {
            return Err(CdiError::TooManyLimits);
        }
        content.in_use.insert(added.clone());
        let written = self.bring_up_to_date(&content);
        if written.is_err() {
            content.in_use.remove(&added);
        }
        written
    }

    /// Drops the limits that no container has. In use are those that are `recorded` by the kubelet, and those that this
    /// process added for pods that may still start containers by `is_there`: the kubelet may not have recorded them
    /// yet. Must not be called before the first [`SpecFile::write`].
    ///
    /// # Errors
    /// As [`SpecFile::write`].
    pub fn set_in_use(
        &self,
        recorded: PodLimits,
        is_there: impl Fn(&PodUid) -> bool,
    ) -> Result<(), CdiError> {
        let mut content = self.content();
        content.in_use.retain(|(pod, _)| is_there(pod));
        content.in_use.extend(recorded);
        content.earlier.clear();
        self.bring_up_to_date(&content)
    }

    fn bring_up_to_date(&self, content: &Content) -> Result<(), CdiError> {
        bring_up_to_date(&self.path, &self.spec(content).to_string())
    }

    fn spec(&self, content: &Content) -> Value {
        let limits: BTreeSet<&Limit> =
            content.in_use.iter().map(|(_, limit)| limit).chain(&content.earlier).collect();
        let mut devices: Vec<Value> = content.gpus.iter().map(device).collect();
        devices.extend(limits.into_iter().map(|limit| limit.device(self.mps.as_deref())));
        json!({ "cdiVersion": "0.5.0", "kind": self.kind, "devices": devices })
    }

    // Every change keeps the content whole, so a panic cannot leave a partial change.
    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Replaces a specification unless it has this text.
///
/// # Errors
/// [`CdiError::Write`].
pub(crate) fn bring_up_to_date(path: &Path, text: &str) -> Result<(), CdiError> {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    // A runtime reads *.json and *.yaml only.
    let fresh = path.with_extension("tmp");
    let directory = path.parent().map_or(Ok(()), fs::create_dir_all);
    let written = directory
        .and_then(|()| write_to_disk(&fresh, text))
        .and_then(|()| fs::rename(&fresh, path));
    written.map_err(|cause| CdiError::Write { path: path.to_owned(), cause })
}

/// Writes the file, and waits until the disk has it: after a power loss a renamed file could be empty otherwise.
fn write_to_disk(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// The limits of a specification that an earlier process wrote.
fn limits(text: &str) -> BTreeSet<Limit> {
    let spec: Value = serde_json::from_str(text).unwrap_or_default();
    let limit = |device: &Value| device["name"].as_str()?.parse::<Limit>().ok();
    spec["devices"].as_array().into_iter().flatten().filter_map(limit).collect()
}

fn device(gpu: &Gpu) -> Value {
    let env: Vec<String> =
        gpu_env(gpu, VOID).into_iter().map(|(key, value)| format!("{key}={value}")).collect();
    json!({ "name": gpu.uuid.as_str(), "containerEdits": { "env": env } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::gpus;
    use placement::units::MiB;
    use proptest::prelude::*;

    #[test]
    fn the_spec_has_a_device_for_each_gpu() {
        let dir = tempfile::tempdir().unwrap();
        let file = SpecFile::new(&dir.path().join("cdi"), "plimsoll.dev/gpu-mem", None);
        file.write(&gpus(&[("GPU-a1b2c3d4-1", 16)]), PodLimits::new()).unwrap();
        assert!(file.path().ends_with("cdi/plimsoll.dev-gpu-mem.json"));
        let spec: Value = serde_json::from_str(&fs::read_to_string(file.path()).unwrap()).unwrap();
        let expected = json!({
            "cdiVersion": "0.5.0",
            "kind": "plimsoll.dev/gpu-mem",
            "devices": [{ "name": "GPU-a1b2c3d4-1", "containerEdits": { "env": [
                "NVIDIA_VISIBLE_DEVICES=void",
                "PLIMSOLL_GPU_UUID=GPU-a1b2c3d4-1",
                "ALIYUN_COM_GPU_MEM_IDX=0",
                "ALIYUN_COM_GPU_MEM_DEV=16",
            ] } }],
        });
        assert_eq!(spec, expected);
    }

    #[test]
    fn an_unchanged_spec_is_not_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = SpecFile::new(dir.path(), "plimsoll.dev/gpu-mem", None);
        file.write(&gpus(&[("GPU-a1b2c3d4-1", 16)]), PodLimits::new()).unwrap();
        let written = fs::metadata(file.path()).unwrap();
        file.write(&gpus(&[("GPU-a1b2c3d4-1", 16)]), PodLimits::new()).unwrap();
        use std::os::unix::fs::MetadataExt;
        assert_eq!(fs::metadata(file.path()).unwrap().ino(), written.ino());
    }

    fn limit_of(mib: u64) -> Limit {
        Limit::Driver { limit: MiB(mib) }
    }

    fn open(dir: &tempfile::TempDir) -> SpecFile {
        SpecFile::new(dir.path(), "plimsoll.dev/gpu-mem", None)
    }

    /// A file without GPUs.
    fn written(dir: &tempfile::TempDir) -> SpecFile {
        let file = open(dir);
        file.write(&Gpus::default(), PodLimits::new()).unwrap();
        file
    }

    fn names(file: &SpecFile) -> Vec<String> {
        let spec: Value = serde_json::from_str(&fs::read_to_string(file.path()).unwrap()).unwrap();
        let devices = spec["devices"].as_array().unwrap();
        devices.iter().map(|device| device["name"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn the_device_of_a_limit_outlives_the_process_that_wrote_it() {
        let dir = tempfile::tempdir().unwrap();
        let gpus = gpus(&[("GPU-a1b2c3d4-1", 16)]);
        let first = open(&dir);
        first.write(&gpus, PodLimits::new()).unwrap();
        first.add(&"p".into(), limit_of(2048)).unwrap();
        let second = open(&dir);
        second.write(&gpus, PodLimits::new()).unwrap();
        second.add(&"q".into(), limit_of(1024)).unwrap();
        assert_eq!(names(&second), ["GPU-a1b2c3d4-1", "driver-1024", "driver-2048"]);
    }

    #[test]
    fn a_limit_stays_while_the_kubelet_records_it_or_its_pod_may_start_containers() {
        let dir = tempfile::tempdir().unwrap();
        written(&dir).add(&"recorded".into(), limit_of(1)).unwrap();
        let file = written(&dir);
        for (pod, mib) in [("gone", 2), ("there", 3)] {
            file.add(&pod.into(), limit_of(mib)).unwrap();
        }
        let recorded = PodLimits::from([("recorded".into(), limit_of(1))]);
        file.set_in_use(recorded, |pod| pod.as_str() == "there").unwrap();
        assert_eq!(names(&file), ["driver-1", "driver-3"]);
        file.set_in_use(PodLimits::new(), |_| false).unwrap();
        assert!(names(&file).is_empty());
    }

    #[test]
    fn a_limit_that_two_pods_have_is_one_device_until_both_are_gone() {
        let dir = tempfile::tempdir().unwrap();
        let file = written(&dir);
        for pod in ["p", "q"] {
            file.add(&pod.into(), limit_of(1)).unwrap();
        }
        file.set_in_use(PodLimits::new(), |pod| pod.as_str() == "q").unwrap();
        assert_eq!(names(&file), ["driver-1"]);
    }

    #[test]
    fn no_number_of_pods_fills_the_file_for_another_pod() {
        let dir = tempfile::tempdir().unwrap();
        let file = written(&dir);
        let full = MAX_LIMITS as u64;
        let mut in_use = PodLimits::new();
        for number in 0..200 * full {
            let pod = PodUid::from((number / full).to_string().as_str());
            in_use.insert((pod, limit_of(number)));
        }
        file.content().in_use = in_use;
        file.add(&"another".into(), limit_of(1 << 20)).unwrap();
        assert!(names(&file).contains(&"driver-1048576".to_owned()));
    }

    #[test]
    fn a_pod_has_a_bounded_number_of_different_limits() {
        let dir = tempfile::tempdir().unwrap();
        let file = written(&dir);
        for mib in 0..MAX_LIMITS as u64 {
            file.add(&"p".into(), limit_of(mib)).unwrap();
        }
        let refused = file.add(&"p".into(), limit_of(1 << 20)).unwrap_err();
        assert!(matches!(refused, CdiError::TooManyLimits), "{refused}");
        file.add(&"p".into(), limit_of(1)).unwrap();
        file.add(&"q".into(), limit_of(1 << 20)).unwrap();
    }

    #[test]
    fn a_file_that_someone_deletes_is_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = open(&dir);
        file.write(&gpus(&[("GPU-a1b2c3d4-1", 16)]), PodLimits::new()).unwrap();
        file.add(&"p".into(), limit_of(1)).unwrap();
        fs::remove_file(file.path()).unwrap();
        file.restore().unwrap();
        assert_eq!(names(&file), ["GPU-a1b2c3d4-1", "driver-1"]);
        fs::remove_file(file.path()).unwrap();
        file.add(&"p".into(), limit_of(1)).unwrap();
        assert_eq!(names(&file), ["GPU-a1b2c3d4-1", "driver-1"]);
    }

    #[test]
    fn a_lost_or_cut_off_file_has_the_limits_of_the_kubelets_record() {
        let dir = tempfile::tempdir().unwrap();
        let file = written(&dir);
        file.add(&"p".into(), limit_of(1)).unwrap();
        let whole = fs::read_to_string(file.path()).unwrap();
        let recorded = PodLimits::from([("p".into(), limit_of(1))]);
        for left in [None, Some(""), Some(&whole[..whole.len() / 2]), Some("[]")] {
            match left {
                None => fs::remove_file(file.path()).unwrap(),
                Some(text) => fs::write(file.path(), text).unwrap(),
            }
            let later = open(&dir);
            later.write(&Gpus::default(), recorded.clone()).unwrap();
            assert_eq!(names(&later), ["driver-1"], "{left:?}");
        }
    }

    #[test]
    fn a_write_that_ended_in_the_middle_leaves_the_file_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let file = written(&dir);
        file.add(&"p".into(), limit_of(1)).unwrap();
        fs::write(file.path().with_extension("tmp"), "{\"cdiVer").unwrap();
        let later = written(&dir);
        assert_eq!(names(&later), ["driver-1"]);
        later.add(&"q".into(), limit_of(2)).unwrap();
        assert_eq!(names(&later), ["driver-1", "driver-2"]);
    }

    #[test]
    fn a_full_disk_leaves_the_file_as_it_was_and_the_limit_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = written(&dir);
        file.add(&"p".into(), limit_of(1)).unwrap();
        // Writes to it fail for want of space.
        let fresh = file.path().with_extension("tmp");
        std::os::unix::fs::symlink("/dev/full", &fresh).unwrap();
        assert!(matches!(file.add(&"p".into(), limit_of(2)), Err(CdiError::Write { .. })));
        assert_eq!(names(&file), ["driver-1"]);
        fs::remove_file(fresh).unwrap();
        file.add(&"p".into(), limit_of(2)).unwrap();
        assert_eq!(names(&file), ["driver-1", "driver-2"]);
    }

    #[test]
    fn a_limit_that_cannot_be_written_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = SpecFile::new(&dir.path().join("cdi"), "plimsoll.dev/gpu-mem", None);
        fs::write(dir.path().join("cdi"), "").unwrap();
        assert!(file.add(&"p".into(), limit_of(1)).is_err());
        fs::remove_file(dir.path().join("cdi")).unwrap();
        file.add(&"p".into(), limit_of(1)).unwrap();
        assert_eq!(names(&file), ["driver-1"]);
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let file = SpecFile::new(Path::new("/dev/null/cdi"), "plimsoll.dev/gpu-mem", None);
        let refused = file.write(&Gpus::default(), PodLimits::new()).unwrap_err();
        assert!(refused.to_string().contains("/dev/null/cdi"), "{refused}");
    }

    /// What happens on a node, to one of four pods where it is about one.
    #[derive(Debug, Clone)]
    enum FileStep {
        /// Allocate for a container with this limit.
        Allocate(u8, u8),
        /// The kubelet writes its checkpoint.
        Record,
        /// The pod is deleted, and the kubelet forgets it at its next admission.
        Delete(u8),
        /// What no container uses is dropped.
        Collect,
        /// A new process begins; the file may have been lost meanwhile.
        Restart { file_is_lost: bool },
        /// The file is lost, and the process sees that.
        Lose,
    }

    fn steps() -> impl Strategy<Value = Vec<FileStep>> {
        let step = prop_oneof![
            4 => (0..4_u8, 0..6_u8).prop_map(|(pod, limit)| FileStep::Allocate(pod, limit)),
            3 => Just(FileStep::Record),
            2 => (0..4_u8).prop_map(FileStep::Delete),
            3 => Just(FileStep::Collect),
            1 => any::<bool>().prop_map(|file_is_lost| FileStep::Restart { file_is_lost }),
            1 => Just(FileStep::Lose),
        ];
        prop::collection::vec(step, 1..40)
    }

    /// The kubelet's memory and its checkpoint: the limits of live pods' containers. A pod is deleted and made again
    /// under another UID.
    #[derive(Default)]
    struct PodsOnNode {
        generations: [u32; 4],
        allocated: PodLimits,
        checkpoint: PodLimits,
    }

    impl PodsOnNode {
        fn uid(&self, pod: u8) -> PodUid {
            PodUid::from(format!("{pod}-{}", self.generations[usize::from(pod)]).as_str())
        }

        fn is_there(&self, uid: &PodUid) -> bool {
            (0..4).any(|pod| self.uid(pod) == *uid)
        }

        fn live(&self) -> BTreeSet<String> {
            let live = self.allocated.iter().filter(|(uid, _)| self.is_there(uid));
            live.map(|(_, limit)| limit.to_string()).collect()
        }
    }

    proptest! {
        // Each case writes files.
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn every_live_container_has_its_device_and_the_file_has_no_others(steps in steps()) {
            let dir = tempfile::tempdir().unwrap();
            let mut file = written(&dir);
            let mut node = PodsOnNode::default();
            for step in steps {
                let collected = matches!(step, FileStep::Collect);
                match step {
                    FileStep::Allocate(pod, limit) => {
                        let uid = node.uid(pod);
                        let limit = limit_of(limit.into());
                        file.add(&uid, limit).unwrap();
                        let there = node.allocated.iter().filter(|(uid, _)| node.is_there(uid));
                        node.allocated = there.cloned().collect();
                        node.allocated.insert((uid, limit));
                    }
                    FileStep::Record => node.checkpoint = node.allocated.clone(),
                    FileStep::Delete(pod) => node.generations[usize::from(pod)] += 1,
                    FileStep::Collect => {
                        file.set_in_use(node.checkpoint.clone(), |uid| node.is_there(uid)).unwrap();
                    }
                    FileStep::Restart { file_is_lost } => {
                        // The kubelet records an allocation long before a process that died after it has a successor.
                        node.checkpoint = node.allocated.clone();
                        if file_is_lost {
                            fs::remove_file(file.path()).unwrap();
                        }
                        file = open(&dir);
                        file.write(&Gpus::default(), node.checkpoint.clone()).unwrap();
                    }
                    FileStep::Lose => {
                        fs::remove_file(file.path()).unwrap();
                        file.restore().unwrap();
                    }
                }
                let devices: BTreeSet<String> = names(&file).into_iter().collect();
                prop_assert!(devices.is_superset(&node.live()), "{:?} lacks some of {:?}", devices, node.live());
                if collected {
                    let of_checkpoint = node.checkpoint.iter().map(|(_, limit)| limit.to_string());
                    let bound: BTreeSet<String> = node.live().into_iter().chain(of_checkpoint).collect();
                    prop_assert_eq!(devices, bound);
                }
            }
        }
    }
}
