//! `--help` of every command, and the two names of the binary.

use std::os::unix::fs::symlink;

use crate::command::{PLIMSOLL, assert_golden, run, run_as};

#[test]
fn help_has_examples_and_changes_only_on_purpose() {
    for words in [
        "",
        "doctor",
        "why",
        "pending",
        "top",
        "top nodes",
        "top pods",
        "gpus",
        "capacity",
        "defragment",
        "events",
        "policy",
        "policy check",
        "policy convert",
        "policy show",
        "policy apply",
        "policy rollback",
        "policy diff",
        "convert",
        "cordon",
        "taints",
        "scheduler",
        "scheduler enable",
        "scheduler disable",
        "scheduler certificates",
        "scheduler-config",
        "ui",
        "version",
        "support-bundle",
        "completion",
    ] {
        let args = words.split(' ').filter(|word| !word.is_empty()).chain(["--help"]);
        let golden = if words.is_empty() {
            "help.txt".to_owned()
        } else {
            format!("help-{}.txt", words.replace(' ', "-"))
        };
        assert_golden(&golden, &run(args).success());
    }
}

#[test]
fn under_kubectls_name_it_is_a_plugin_of_kubectl() {
    let folder = tempfile::tempdir().unwrap();
    let plugin = folder.path().join("kubectl-plimsoll");
    symlink(PLIMSOLL, &plugin).unwrap();
    let help = run_as(&plugin, ["gpus", "--help"], "").success();
    assert!(help.contains("Usage: kubectl plimsoll gpus [OPTIONS] [NODE]"), "{help}");
    let wrong = run_as(&plugin, ["gpus", "--extendr=x"], "");
    assert!(wrong.stderr.contains("Usage: kubectl plimsoll gpus"), "{}", wrong.stderr);
}

#[test]
fn wrong_flags_exit_with_2() {
    for args in [&["inspect", "--extender=https://a:1"][..], &["policy"], &["nonsense"], &[]] {
        let run = run(args);
        assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "{args:?}");
    }
}

#[test]
fn former_names_stay() {
    for words in [&["explain", "pod", "--help"][..], &["inspect", "--help"]] {
        run(words).success();
    }
}
