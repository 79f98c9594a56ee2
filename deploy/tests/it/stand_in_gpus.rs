//! `scripts/stand-in-cards.sh`: wrong settings are refused before anything is made, and a later run takes back what a
//! former one made.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use support::programs::write_script;
use tempfile::TempDir;

use crate::repository::root;

/// The folders of a machine, and programs that make no device nodes and need no root.
struct Machine(TempDir);

impl Machine {
    fn new() -> Self {
        let machine = Self(TempDir::new().expect("a folder"));
        fs::create_dir(machine.path("bin")).expect("a folder");
        for (name, script) in [("id", "echo 0"), ("mknod", "echo >\"$3\"")] {
            write_script(&machine.path("bin").join(name), &format!("#!/bin/sh\n{script}\n"));
        }
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The exit status of the script with these settings, and what it printed.
    fn run(&self, settings: &[(&str, &str)]) -> (Option<i32>, String) {
        let path = std::env::var("PATH").expect("a path");
        let mut command = Command::new("sh");
        command.arg(root().join("scripts/stand-in-cards.sh"));
        command.env("PATH", format!("{}:{path}", self.path("bin").display()));
        command.env("FOLDER", self.path("cards")).env("CDI_FOLDER", self.path("cdi"));
        command.envs(settings.iter().copied());
        let output = command.output().expect("sh runs");
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).expect("UTF-8"))
    }

    fn devices(&self) -> Vec<String> {
        let files = fs::read_dir(self.path("cards/dev")).expect("a folder");
        let mut names: Vec<String> =
            files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// The paths of device nodes on the machine that a CDI specification names.
fn host_paths(specification: &Value) -> Vec<String> {
    let devices = specification["devices"].as_array().expect("devices").iter();
    let edits = devices.map(|device| &device["containerEdits"]["deviceNodes"][0]["hostPath"]);
    edits.map(|path| path.as_str().expect("a path").to_owned()).collect()
}

#[test]
fn a_run_with_fewer_gpus_leaves_nothing_of_the_others() {
    let machine = Machine::new();
    for (gpus, devices) in [
        ("3", &["nvidia0", "nvidia1", "nvidia2"][..]),
        ("1", &["nvidia0"]),
        ("2", &["nvidia0", "nvidia1"]),
    ] {
        let (code, said) = machine.run(&[("CARDS", gpus), ("MEMORY_MIB", "8192")]);
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(machine.devices(), [&["nvidia-uvm"], devices, &["nvidiactl"]].concat());
        let script = fs::read_to_string(machine.path("cards/nvml-script.json")).unwrap();
        let script: Value = serde_json::from_str(&script).expect("JSON");
        let specification = fs::read_to_string(machine.path("cdi/nvidia.yaml")).unwrap();
        let specification: Value = serde_saphyr::from_str(&specification).expect("YAML");
        let folder = machine.path("cards/dev");
        let paths: Vec<String> =
            devices.iter().map(|device| folder.join(device).display().to_string()).collect();
        assert_eq!(host_paths(&specification), paths);
        let of_all = specification["containerEdits"]["deviceNodes"].as_array().expect("nodes");
        let of_all: Vec<&str> = of_all.iter().map(|node| node["path"].as_str().unwrap()).collect();
        assert_eq!(of_all, ["/dev/nvidiactl", "/dev/nvidia-uvm"], "what CUDA needs");
        let gpus = script["cards"].as_array().expect("cards");
        assert_eq!(gpus.len(), devices.len());
        for (gpu, device) in gpus.iter().zip(specification["devices"].as_array().unwrap()) {
            assert_eq!(gpu["memoryMiB"], 8192);
            assert_eq!(gpu["uuid"], device["name"]);
        }
    }
}

#[test]
fn settings_of_which_no_gpus_can_be_made_are_refused() {
    let machine = Machine::new();
    for (name, values) in [
        ("CARDS", &["0", "02", "17", "-1", "1 2", "99999999999999999999"][..]),
        ("MEMORY_MIB", &["0", "016384", "1e3", "16Gi", "99999999999999999999"]),
        ("FOLDER", &["cards", "/", "//", "/tmp/..", "/tmp/a b", "/tmp/a: b", "/tmp/{a}"]),
    ] {
        for value in values {
            let (code, said) = machine.run(&[(name, value)]);
            assert_eq!(code, Some(2), "{name}={value}: {said}");
            assert!(said.starts_with(name) && said.contains(value), "{name}={value}: {said}");
        }
    }
    assert!(!machine.path("cards").exists() && !machine.path("cdi").exists());
}

#[test]
fn a_specification_of_another_program_is_left_as_it_is() {
    let machine = Machine::new();
    let others = format!("kind: nvidia.com/gpu\n# {}/dev/\n", machine.path("cards").display());
    fs::create_dir(machine.path("cdi")).expect("a folder");
    fs::write(machine.path("cdi/nvidia.yaml"), &others).expect("a file");
    let (code, said) = machine.run(&[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("is there already, and not by this script"), "{said}");
    assert_eq!(fs::read_to_string(machine.path("cdi/nvidia.yaml")).unwrap(), others);
    assert!(!machine.path("cards").exists());
}
