//! Whether a container with units has run, fails at its start, or cannot start for a fault of its node.
//!
//! Invariant: who fails at the start says nothing about whose fault that is. A text tells of the node's fault only by
//! its beginning, which the container runtime writes. What follows may repeat what the pod's author wrote: a command, a
//! path, what a hook says of the image. Nor does a failure count that an author can cause: a hook that ends with an
//! error may have met a strange image, and one that is refused its start a user namespace or a limit of processes.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use placement::names::Names;

use super::{Container, ContainerStatus, Pod, RunTimes, Waiting};

/// What containerd, CRI-O, the shim and runc write before the cause: `container_create.go` and `container_start.go` of
/// containerd's CRI server, `process/init.go` of its shim, `process_linux.go` of runc.
const BEFORE_CAUSE: [&str; 9] = [
    "failed to create containerd container: ",
    "failed to get container spec opts: ",
    "failed to create containerd task: ",
    "failed to create shim task: ",
    "container create failed: ",
    "OCI runtime create failed: ",
    "runc create failed: ",
    "unable to start container process: ",
    "error during container init: ",
];

/// When the hooks run that runc finds on the host. The word is missing before runc 1.2. Those of `startContainer` are
/// the image's own programs.
const HOST_HOOKS: [&str; 4] = ["createContainer ", "createRuntime ", "prestart ", ""];

/// The time in which a program that finds no working GPU has ended: frameworks load for seconds first.
const SOON: SignedDuration = SignedDuration::from_secs(30);

impl Pod {
    /// Whether a container that requests units cannot be created or started, or its last run ended with an error within
    /// half a minute and it has not started again.
    #[must_use]
    pub fn fails_at_start(&self, names: &Names) -> bool {
        self.statuses_with_units(names).any(|ContainerStatus { state, last_state, .. }| {
            let reason = state.waiting.as_ref().map(|waiting| waiting.reason.as_str());
            match reason {
                Some("CreateContainerError" | "RunContainerError") => true,
                Some(_) => last_state.terminated.as_ref().is_some_and(failed_soon),
                None => state.terminated.as_ref().is_some_and(failed_soon),
            }
        })
    }

    /// Whether a container that requests units has run.
    pub(super) fn has_started(&self, names: &Names) -> bool {
        self.statuses_with_units(names)
            .any(|status| status.state.run().or(status.last_state.run()).is_some())
    }

    /// Whether a container that requests units waits, since its node's runtime cannot give it its GPU.
    pub(super) fn cannot_start(&self, names: &Names) -> bool {
        // A runtime of the pod's own choice may have hooks of its own.
        let is_default_runtime = self.spec.runtime_class_name.is_empty();
        self.statuses_with_units(names).any(|status| {
            let Some(Waiting { reason, message }) = &status.state.waiting else { return false };
            let cause = after_known_words(message);
            match reason.as_str() {
                "CreateContainerError" if is_of_cdi(cause, names) => true,
                // CRI-O has runc create the container where containerd only writes its specification.
                "CreateContainerError" | "RunContainerError" => {
                    is_default_runtime && is_missing_hook(cause)
                }
                _ => false,
            }
        })
    }

    fn statuses_with_units(&self, names: &Names) -> impl Iterator<Item = &ContainerStatus> {
        let asks = |container: &&Container| {
            let units = container.resources.limits.get(names.gpu_resource());
            units.is_some_and(|units| units.count().is_ok_and(|units| units > 0))
        };
        let with_units = |containers: &[Container]| -> BTreeSet<String> {
            containers.iter().filter(asks).map(|container| container.name.clone()).collect()
        };
        let apps = with_units(&self.spec.containers);
        let inits = with_units(&self.spec.init_containers);
        let init_statuses = &self.status.init_container_statuses;
        self.status
            .container_statuses
            .iter()
            .filter(move |status| apps.contains(&status.name))
            .chain(init_statuses.iter().filter(move |status| inits.contains(&status.name)))
    }
}

/// Whether a run ended with an error soon after its start. One that could not be started has no beginning.
fn failed_soon(run: &RunTimes) -> bool {
    let (Some(started), Some(finished)) = (run.started_at, run.finished_at) else { return false };
    run.exit_code != 0 && finished.duration_since(started) <= SOON
}

/// The cause in a message of the container runtime.
fn after_known_words(message: &str) -> &str {
    let mut cause = message;
    while let Some(inner) = BEFORE_CAUSE.iter().find_map(|before| cause.strip_prefix(before)) {
        cause = inner;
    }
    cause
}

/// Whether the runtime could not inject our devices: `oci_opt.go` and `container_create_linux.go` of containerd,
/// `cache.go` and `container-edits_unix.go` of the CDI library.
fn is_of_cdi(cause: &str, names: &Names) -> bool {
    const OFF: &str = ") requested but CDI support is explicitly disabled";
    let has_ours = |devices: &str| devices.split(", ").any(|device| is_ours(device, names));
    if let Some(rest) = cause.strip_prefix("CDI devices (") {
        return rest.split_once(OFF).is_some_and(|(devices, _)| has_ours(devices));
    }
    let Some(rest) = cause.strip_prefix("CDI device injection failed: ") else { return false };
    if let Some(devices) = rest.strip_prefix("unresolvable CDI devices ") {
        return has_ours(devices);
    }
    let node = rest.strip_prefix("failed to inject devices: failed to stat CDI host device \"");
    node.and_then(|rest| rest.split_once('"')).is_some_and(|(path, _)| is_nvidias(path))
}

/// Whether a CDI device is NVIDIA's of a GPU, or one of the device plugin's. A driver of dynamic resource allocation
/// has devices of its own.
fn is_ours(device: &str, names: &Names) -> bool {
    let Some((kind, name)) = device.split_once('=') else { return false };
    name.starts_with("GPU-") || kind == names.cdi_kind()
}

/// Whether NVIDIA's program of a hook is gone from the node: `configs.go` of runc.
fn is_missing_hook(cause: &str) -> bool {
    failed_hook(cause)
        .is_some_and(|(path, why)| is_nvidias(path) && why.starts_with("no such file or directory"))
}

/// The program of a hook that could not be started, and why.
fn failed_hook(cause: &str) -> Option<(&str, &str)> {
    let hook = cause.strip_prefix("error running ")?;
    let number =
        HOST_HOOKS.iter().find_map(|kind| hook.strip_prefix(kind)?.strip_prefix("hook #"))?;
    let error = number.trim_start_matches(|c: char| c.is_ascii_digit()).strip_prefix(": ")?;
    let inner = error.strip_prefix("error running hook: ").unwrap_or(error);
    inner.strip_prefix("fork/exec ")?.split_once(": ")
}

/// Whether a path of the node is of one of NVIDIA's device nodes or programs, by its last part.
fn is_nvidias(path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|file| file.starts_with("nvidia"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const CREATE: &str = "failed to create containerd container: ";
    const START: &str = "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc \
                         create failed: unable to start container process: error during container init: ";

    fn pod(statuses: &Value) -> Pod {
        let units = json!({ "limits": { "aliyun.com/gpu-mem": 1 } });
        let plain =
            json!({ "name": "plain", "resources": { "limits": { "aliyun.com/gpu-mem": 0 } } });
        serde_json::from_value(json!({
            "spec": {
                "containers": [{ "name": "main", "resources": units }, plain],
                "initContainers": [{ "name": "first", "resources": units }, plain],
            },
            "status": statuses,
        }))
        .unwrap()
    }

    fn waits(reason: &str, message: &str) -> Value {
        json!({ "waiting": { "reason": reason, "message": message } })
    }

    fn counts(reason: &str, message: &str) -> bool {
        let status = json!({ "name": "main", "state": waits(reason, message) });
        pod(&json!({ "containerStatuses": [status] })).cannot_start(&Names::default())
    }

    #[test]
    fn a_runtime_that_cannot_give_the_gpu_is_the_nodes_fault() {
        for message in [
            format!("{CREATE}CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=GPU-a"),
            format!("{CREATE}CDI device injection failed: unresolvable CDI devices x/y=z, plimsoll.dev/gpu-mem=mps-1-2-3"),
            format!("{CREATE}CDI device injection failed: failed to inject devices: failed to stat CDI host device \
                     \"/run/nvidia/driver/dev/nvidia-uvm\": lstat: no such file or directory"),
            // CRI-O has nothing before it.
            "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=GPU-a".to_owned(),
            "failed to get container spec opts: CDI devices (nvidia.com/gpu=GPU-a, plimsoll.dev/gpu-mem=GPU-a) requested \
             but CDI support is explicitly disabled".to_owned(),
        ] {
            assert!(counts("CreateContainerError", &message), "{message}");
            assert!(!counts("CreateContainerConfigError", &message) && !counts("CrashLoopBackOff", &message));
        }
        for hook in
            ["createContainer hook #0: ", "hook #12: error running hook: ", "prestart hook #1: "]
        {
            let message = format!(
                "{START}error running {hook}fork/exec /usr/bin/nvidia-ctk: no such file or directory"
            );
            assert!(counts("RunContainerError", &message), "{message}");
        }
    }

    /// The texts between these beginnings and the ends are the author's: names, commands, paths, what hooks say.
    #[test]
    fn no_text_of_a_pods_author_is_the_nodes_fault() {
        let node = "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=GPU-a";
        let hook = "error running createContainer hook #0: fork/exec /usr/bin/nvidia-ctk: no such file or directory";
        for message in [
            format!("{START}exec: \"{hook}\": executable file not found in $PATH"),
            format!("{START}exec: \"{node}\": stat {node}: no such file or directory"),
            format!("{START}error mounting \"/{hook}\" to rootfs at \"/{hook}\": not a directory"),
            format!(
                "{START}error running createContainer hook #2: exit status 2, stdout: , stderr: panic: {hook}"
            ),
            format!(
                "{START}error running createRuntime hook #0: exit status 1, stdout: , stderr: {hook}"
            ),
            format!(
                "{START}error running createContainer hook #0: fork/exec /usr/bin/nvidia-ctk: permission denied"
            ),
            format!(
                "{START}error running createContainer hook #0: fork/exec /usr/bin/nvidia-ctk: resource temporarily unavailable"
            ),
            format!(
                "{START}error running createContainer hook #0: fork/exec /opt/other/hook: no such file or directory"
            ),
            format!(
                "{START}error running startContainer hook #0: fork/exec /usr/bin/nvidia-ctk: no such file or directory"
            ),
            format!("{CREATE}failed to stat \"{node}\": {hook}"),
            format!(
                "{CREATE}CDI device injection failed: unresolvable CDI devices k8s.gpu.nvidia.com/claim=a-gpu-0"
            ),
            format!(
                "{CREATE}CDI device injection failed: failed to inject devices: failed to stat CDI host device \"/dev/x\": {node}"
            ),
            format!("failed to generate container \"a\" spec: {node}"),
            format!("image name {node}"),
            String::new(),
        ] {
            for reason in ["CreateContainerError", "RunContainerError"] {
                assert!(!counts(reason, &message), "{reason}: {message}");
            }
        }
    }

    #[test]
    fn a_runtime_of_the_pods_choice_is_not_the_nodes_fault() {
        let missing = format!(
            "{START}error running createContainer hook #0: fork/exec /usr/bin/nvidia-ctk: no such file or directory"
        );
        let injected = format!(
            "{START}CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=GPU-a"
        );
        for (class, message, is_counted) in
            [("", &missing, true), ("nvidia", &missing, false), ("", &injected, false)]
        {
            let status = json!({ "name": "main", "state": waits("RunContainerError", message) });
            let mut pod = pod(&json!({ "containerStatuses": [status] }));
            pod.spec.runtime_class_name = class.to_owned();
            assert_eq!(pod.cannot_start(&Names::default()), is_counted, "{class} {message}");
        }
    }

    #[test]
    fn a_container_fails_at_its_start_that_cannot_start_or_ends_soon_with_an_error() {
        let ran = |seconds: u32, code: u32| {
            let finished = format!("2026-11-20T09:00:{seconds:02}Z");
            json!({ "terminated": {
                "startedAt": "2026-11-20T09:00:00Z", "finishedAt": finished, "exitCode": code,
            } })
        };
        let running = json!({ "running": { "startedAt": "2026-11-20T09:01:00Z" } });
        let looping = waits("CrashLoopBackOff", "");
        for (state, last, is_failure) in [
            (&waits("CreateContainerError", "x"), &json!({}), true),
            (&waits("RunContainerError", "x"), &json!({}), true),
            (&waits("ErrImagePull", "x"), &json!({}), false),
            (&looping, &ran(30, 1), true),
            (&looping, &ran(31, 1), false),
            (&ran(3, 137), &json!({}), true),
            (&ran(3, 0), &json!({}), false),
            (&running, &ran(3, 1), false),
            (&json!({}), &json!({}), false),
        ] {
            let status = json!({ "name": "main", "state": state, "lastState": last });
            let with_units = pod(&json!({ "containerStatuses": [status] }));
            let fails = with_units.fails_at_start(&Names::default());
            assert_eq!(fails, is_failure, "{state} after {last}");
            let status = json!({ "name": "plain", "state": state, "lastState": last });
            let without = pod(&json!({ "containerStatuses": [status] }));
            assert!(!without.fails_at_start(&Names::default()));
        }
    }

    #[test]
    fn only_containers_with_units_count() {
        let names = Names::default();
        let failed = waits(
            "CreateContainerError",
            "CDI device injection failed: unresolvable CDI devices a/b=GPU-a",
        );
        let ran = json!({ "terminated": { "startedAt": "2026-11-20T09:00:00Z", "finishedAt": "2026-11-20T09:00:01Z" } });
        for (list, container, is_counted) in [
            ("containerStatuses", "main", true),
            ("initContainerStatuses", "first", true),
            ("containerStatuses", "plain", false),
            ("containerStatuses", "first", false),
            ("initContainerStatuses", "plain", false),
        ] {
            let status =
                |state: &Value| pod(&json!({ list: [{ "name": container, "state": state }] }));
            assert_eq!(status(&failed).cannot_start(&names), is_counted, "{list} {container}");
            assert_eq!(status(&ran).has_started(&names), is_counted, "{list} {container}");
            assert!(!status(&failed).has_started(&names) && !status(&ran).cannot_start(&names));
        }
        // A container that could not be started has ended without a beginning.
        let not_run = json!({ "terminated": { "reason": "StartError", "startedAt": "1970-01-01T00:00:00Z" } });
        assert!(
            !pod(&json!({ "containerStatuses": [{ "name": "main", "state": not_run }] }))
                .has_started(&names)
        );
    }
}
