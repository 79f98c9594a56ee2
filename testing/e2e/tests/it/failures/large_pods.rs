//! Tests of pods as large as the API server takes, which any user can create.

use anyhow::{Result, ensure};
use e2e::command::wait_for;
use e2e::kernel::processes::{self, Signal};
use serde_json::{Value, json};

use crate::env::TestEnv;
use crate::support::extender_client::EXTENDER;
use crate::support::gpu_audit::audit_exactly;
use crate::support::pods::{
    START, create, create_all, gated, gpu_container, idle_container, name, pod, running, statuses,
};
use crate::{Fact, on_our_nodes};

pub(crate) const FACTS: &[Fact] =
    &[on_our_nodes("no_program_runs_out_of_memory_beside_pods_of_any_size", restarted)
        .takes(83)
        .smoke()];

/// Together some 50 MB in etcd, and twice that as JSON.
const COUNT: usize = 36;

/// The largest request that etcd takes is 1.5 MiB.
const LARGE: usize = 1_300_000;

const PROGRAMS: [&str; 3] = [EXTENDER, "annotator", "gpushare-device-plugin"];

/// A pod that waits for its scheduling gate, or one for a scheduler that does not exist with a node of its own choice,
/// so that it counts as that node's and never starts.
fn large(number: usize, node: &str) -> Value {
    let mut main = idle_container("main");
    main["args"] = match number % 3 {
        0 => json!(vec!["a"; LARGE / 3]),
        1 => json!(["x".repeat(LARGE)]),
        // Six bytes each as JSON.
        _ => json!(["<".repeat(LARGE)]),
    };
    let mut pod = pod(&format!("large-{number}"), &[main]);
    if number.is_multiple_of(2) {
        return gated(pod);
    }
    pod["spec"]["nodeName"] = json!(node);
    // The kubelet refuses it: no node has such a label.
    pod["spec"]["nodeSelector"] = json!({"plimsoll-e2e/none": "here"});
    pod
}

/// How often the program's containers were started again, together.
fn restarts(env: &TestEnv, program: &str) -> Result<i32> {
    let pods = env.program_pods(program)?;
    Ok(pods.iter().flat_map(statuses).map(|status| status.restart_count).sum())
}

fn restarted(env: &TestEnv) -> Result<()> {
    let plugins = env.program_pods("gpushare-device-plugin")?;
    let on = plugins.first().and_then(|pod| pod.spec.as_ref()?.node_name.clone());
    let node = on.unwrap_or_default();
    ensure!(!node.is_empty(), "no device plugin runs");
    // A few at a time: the API server reads each as a whole.
    for numbers in (0..COUNT).collect::<Vec<_>>().chunks(4) {
        create_all(env, numbers.iter().map(|number| large(*number, &node)).collect())?;
    }
    for program in PROGRAMS {
        let before = restarts(env, program)?;
        let killed = env.programs(program)?;
        for process in &killed {
            // It may be gone: the kubelet restarts a container that has failed.
            let _ = processes::signal(*process, Signal::KILL);
        }
        let wanted = before + i32::try_from(killed.len())?;
        wait_for(&format!("every {program} to be ready again"), START, || {
            let again = restarts(env, program)? >= wanted && env.program_ready(program)?;
            Ok(again.then_some(()))
        })?;
    }
    create(env, pod("gpu", &[gpu_container("main", 4)]))?;
    running(env, "gpu", START)?;
    audit_exactly(env, 1)?;
    for program in PROGRAMS {
        for pod in env.program_pods(program)? {
            for status in statuses(&pod) {
                let last = status.last_state.as_ref().and_then(|state| state.terminated.as_ref());
                let reason = last.and_then(|end| end.reason.as_deref()).unwrap_or_default();
                ensure!(reason != "OOMKilled", "{} ran out of memory", name(&pod));
            }
        }
    }
    Ok(())
}
