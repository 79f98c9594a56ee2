//! What the device plugin reads from elsewhere: device ids, which the kubelet keeps in its checkpoint and hands back
//! after restarts, CDI specifications of others, and the control groups of processes.

use std::collections::BTreeSet;

use gpushare_device_plugin::gpus::ids::{DeviceId, digits, prefixes};
use gpushare_device_plugin::nvidia::spec as nvidia;
use gpushare_device_plugin::processes::group::PodGroup;
use placement::units::GpuId;

use crate::text;

/// An id that parses is written as it was, and two GPUs with different UUIDs have different prefixes.
pub(crate) fn device_ids(input: &[u8]) {
    let Some(text) = text(input) else { return };
    for line in text.lines() {
        if let Ok(id) = line.parse::<DeviceId>() {
            assert_eq!(id.to_string(), line);
        }
    }
    let gpus: Vec<GpuId> = text.lines().take(16).map(GpuId::from).collect();
    let known: BTreeSet<String> = gpus.iter().map(digits).collect();
    let prefixes = prefixes(&gpus);
    assert_eq!(prefixes.iter().collect::<BTreeSet<_>>().len(), known.len(), "{prefixes:?}");
    for prefix in prefixes.iter().filter(|prefix| !prefix.is_empty()) {
        let id = DeviceId::new(prefix, u32::MAX);
        assert_eq!(id.to_string().parse(), Ok(id));
    }
}

pub(crate) fn ids() -> Vec<Vec<u8>> {
    ["a1b2c3d4-7\nGPU-a1b2c3d4-01\nGPU-a1b2c3d4-02\nGPU-ffffffff-01\n", "a1b2c3d4-07\n-7\nMIG-1\n"]
        .map(Vec::from)
        .into()
}

/// A specification that parses has the kind that was asked for, and no driver without a dot in its version.
pub(crate) fn nvidia_cdi(input: &[u8]) {
    let Some(text) = text(input) else { return };
    if let Ok(Some(spec)) = nvidia::parse(text, KIND) {
        assert!(text.contains("gpu"));
        assert!(spec.driver.is_none_or(|driver| driver.contains('.')));
    }
}

const KIND: &str = "nvidia.com/gpu";

pub(crate) fn specifications() -> Vec<Vec<u8>> {
    let json = r#"{"cdiVersion":"0.6.0","kind":"nvidia.com/gpu","devices":[{"name":"GPU-a","containerEdits":
        {"deviceNodes":[{"path":"/dev/nvidia0"}],"hooks":[{"hookName":"createRuntime","path":"/usr/bin/nvidia-ctk",
        "args":["nvidia-ctk","hook","apply-cuda-memory-limits","--gpu-id","GPU-a"]}]}}],
        "containerEdits":{"mounts":[{"hostPath":"/usr/lib/libcuda.so.615.12.03"}],
        "deviceNodes":[{"path":"/dev/nvidiactl"},{"path":"/dev/nvidia-uvm"}]}}"#;
    let yaml = "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: \"0\"\n  containerEdits: null\n";
    [json, yaml, "kind: nvidia.com/gpu\ndevices: &a [*a]\n", "kind: [\n"].map(Vec::from).into()
}

/// The file of a process is of a pod whose UID stands in it, in the form of one driver or the other, below a folder of
/// the kubelet's or in a control group namespace; and of a container whose id stands in it.
pub(crate) fn process_groups(input: &[u8]) {
    let Some(text) = text(input) else { return };
    let Some(group) = PodGroup::of_file(text) else { return };
    let uid = group.pod.as_str();
    assert!(text.contains(uid) || text.contains(&uid.replace('-', "_")), "{uid}");
    assert!(text.contains("kubepods") || text.contains("/.."));
    assert!(group.container.is_none_or(|id| id.as_str().len() == 64 && text.contains(id.as_str())));
}

pub(crate) fn groups() -> Vec<Vec<u8>> {
    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const UID: &str = "8b1f4a9e-0d4c-4a63-9d6e-2f6a1c0b7e55";
    let slice = UID.replace('-', "_");
    [
        format!("9:pids:/\n4:memory:/kubepods/burstable/pod{UID}/{ID}\n"),
        format!("0::/kubepods.slice/kubepods-pod{slice}.slice/cri-containerd-{ID}.scope/init\n"),
        format!("0::/../../kubepods-besteffort-pod{slice}.slice/crio-{ID}.scope\n"),
        format!("0::/user.slice/user-1000.slice/user@1000.service/kubepods/pod{UID}/{ID}\n"),
        "0::/kubepods/pod04dbdd5b3b5b2a3a8c3fd1f3ad5f4a4e\n".to_owned(),
    ]
    .map(Vec::from)
    .into()
}
