//! The error of a plugin that cannot start, and its page of metrics.

use daemon::{Causes, Context};
use gpushare_device_plugin::app;

use crate::rig::Rig;

#[tokio::test]
async fn a_missing_kubeconfig_is_named_once_and_no_task_starts() {
    let rig = Rig::unregistered(&[]).await;
    let mut args = rig.args();
    args.api.kubeconfig = Some("/nowhere/config".into());
    let context = Context::new(daemon::program!());
    let error = app::run(args, context.clone()).await.unwrap_err();
    let causes = Causes(error.as_ref());
    assert!(causes.are_named_once(), "{causes}");
    let line = causes.to_string();
    let missing = "No such file or directory (os error 2)";
    assert!(line.contains("--kubeconfig /nowhere/config: ") && line.ends_with(missing), "{line}");
    assert!(context.tasks().running().is_empty());
}

#[tokio::test]
#[ignore = "needs promtool: make oracle"]
async fn promtool_finds_no_fault_in_the_page() {
    let rig = Rig::new(&[("GPU-11111111-0000", 16)]).await;
    support::promtool::check(&rig.page());
}
