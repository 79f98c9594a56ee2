//! Tests of what one program of Plimsoll can do to another: each runs as a user of its own, and waits in a queue of its
//! own at the API server.

use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use e2e::command::wait_for;
use e2e::kernel::processes::Pid;

use crate::env::TestEnv;
use crate::support::pods::BINDING;
use crate::{Fact, on_any_cluster, on_our_nodes};

pub(crate) const FACTS: &[Fact] = &[
    on_our_nodes("the_exporters_user_reads_no_secret_of_another_program_through_proc", secrets)
        .takes(1)
        .smoke(),
    on_any_cluster("leases_and_bindings_have_queues_of_their_own_at_the_api_server", queues)
        .takes(1)
        .smoke(),
];

/// What a program has of secrets, below `/proc/PID`.
const TOKEN: &str = "root/var/run/secrets/kubernetes.io/serviceaccount/token";
const KEY: &str = "root/etc/scheduler-extender/tls.key";

/// Whether a process with this user and group, and no capability, reads that file.
fn reads(user: u32, path: &str) -> Result<bool> {
    let read = Command::new("cat").arg(path).uid(user).gid(user).output();
    let read = read.context("cannot start cat")?;
    let error = String::from_utf8_lossy(&read.stderr).into_owned();
    let denied = error.contains("Permission denied");
    ensure!(read.status.success() || denied, "{path} as {user}: {error}");
    Ok(read.status.success())
}

fn user_of(process: Pid) -> Result<u32> {
    let number = process.as_raw_nonzero();
    Ok(std::fs::metadata(format!("/proc/{number}"))?.uid())
}

/// The exporter mounts the host's /proc, where a process can read the environment and the files of all with its user
/// and group.
fn secrets(env: &TestEnv) -> Result<()> {
    let exporter = *env.programs("node-exporter-plus")?.first().context("no exporter runs")?;
    let exporter = user_of(exporter)?;
    for (program, files) in [
        ("annotator", &["environ", TOKEN][..]),
        ("scheduler-extender", &["environ", TOKEN, KEY]),
        ("gpushare-device-plugin", &["environ", TOKEN]),
    ] {
        let process = *env.programs(program)?.first().with_context(|| format!("no {program}"))?;
        let own = user_of(process)?;
        ensure!(own != exporter, "{program} has the exporter's user {own}");
        for file in files {
            let path = format!("/proc/{}/{file}", process.as_raw_nonzero());
            ensure!(!reads(exporter, &path)?, "the exporter's user {exporter} reads {path}");
            // What shows that the way is right.
            ensure!(reads(own, &path)?, "{program}'s own user {own} does not read {path}");
        }
    }
    Ok(())
}

fn queues(env: &TestEnv) -> Result<()> {
    for (schema, level) in
        [("plimsoll-leases", "leader-election"), ("plimsoll-scheduling", "workload-high")]
    {
        wait_for(&format!("requests of {schema} in {level}"), BINDING, || {
            Ok(was_dispatched(env, schema, level)?.then_some(()))
        })?;
    }
    Ok(())
}

fn was_dispatched(env: &TestEnv, schema: &str, level: &str) -> Result<bool> {
    let request = http::Request::get("/metrics").body(Vec::new())?;
    let page = env.block_on(env.client().request_text(request))?;
    let found = page.lines().find(|line| {
        line.starts_with("apiserver_flowcontrol_dispatched_requests_total{")
            && line.contains(&format!("flow_schema=\"{schema}\""))
            && line.contains(&format!("priority_level=\"{level}\""))
    });
    Ok(found.is_some_and(|line| !line.ends_with(" 0")))
}
