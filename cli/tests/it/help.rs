//! `--help` of every command, and the two names of the binary.

use std::os::unix::fs::symlink;

use crate::command::{PLIMSOLL, assert_golden, run, run_as};

#[test]
fn help_has_examples_and_changes_only_on_purpose() {
    for (golden, args) in [
        ("help.txt", &["--help"][..]),
        ("help-policy-check.txt", &["policy", "check", "--help"]),
        ("help-policy-convert.txt", &["policy", "convert", "--help"]),
        ("help-scheduler-config.txt", &["scheduler-config", "--help"]),
        ("help-policy-diff.txt", &["policy", "diff", "--help"]),
        ("help-inspect.txt", &["inspect", "--help"]),
        ("help-taints.txt", &["taints", "--help"]),
        ("help-explain-pod.txt", &["explain", "pod", "--help"]),
    ] {
        assert_golden(golden, &run(args).success());
    }
}

#[test]
fn under_kubectls_name_it_is_a_plugin_of_kubectl() {
    let folder = tempfile::tempdir().unwrap();
    let plugin = folder.path().join("kubectl-plimsoll");
    symlink(PLIMSOLL, &plugin).unwrap();
    let help = run_as(&plugin, ["inspect", "--help"], "").success();
    assert!(help.contains("Usage: kubectl plimsoll inspect [OPTIONS] [NODE]"), "{help}");
    let wrong = run_as(&plugin, ["inspect", "--extendr=x"], "");
    assert!(wrong.stderr.contains("Usage: kubectl plimsoll inspect"), "{}", wrong.stderr);
}

#[test]
fn wrong_flags_exit_with_2() {
    for args in [&["inspect", "--extender=https://a:1"][..], &["policy"], &["nonsense"], &[]] {
        let run = run(args);
        assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "{args:?}");
    }
}
