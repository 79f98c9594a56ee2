//! Images are at no address that others could own, hold nothing that is not pinned, and agree with the manifests.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::manifests::{PROGRAMS, REGISTRY, container, gpu_probe, pod, ports, read, strings};
use crate::repository::root;

const VERSION: &str = env!("CARGO_PKG_VERSION");

#[test]
fn every_image_has_the_tag_of_this_version() {
    for program in PROGRAMS {
        assert_eq!(container(program)["image"], format!("{REGISTRY}/{program}:{VERSION}"));
        assert_eq!(container(program)["imagePullPolicy"], "IfNotPresent");
    }
    assert_eq!(gpu_probe()["image"], container("node-exporter-plus")["image"]);
    let copied = "COPY bin/gpu-probe /usr/local/bin/".to_owned();
    assert!(stage("node-exporter-plus").contains(&copied), "{copied}");
    assert_eq!(strings(&gpu_probe()["command"]), ["/usr/local/bin/gpu-probe"]);
}

/// The lines of the Dockerfile's stage that is named as the program.
fn stage(program: &str) -> Vec<String> {
    let dockerfile = read("Dockerfile");
    let lines = dockerfile.lines().skip_while(|line| *line != format!("FROM runtime AS {program}"));
    lines.skip(1).take_while(|line| !line.starts_with("FROM ")).map(str::to_owned).collect()
}

fn instruction(program: &str, name: &str) -> String {
    let lines = stage(program);
    let line = lines
        .iter()
        .find_map(|line| line.strip_prefix(name))
        .unwrap_or_else(|| panic!("{program}: {name}"));
    line.trim().to_owned()
}

#[test]
fn every_program_has_a_stage_that_runs_it() {
    for program in PROGRAMS {
        assert_eq!(instruction(program, "COPY"), format!("bin/{program} /usr/local/bin/"));
        assert_eq!(instruction(program, "ENTRYPOINT"), format!("[\"/usr/local/bin/{program}\"]"));
    }
}

#[test]
fn images_and_manifests_agree_on_users_and_ports() {
    for program in PROGRAMS {
        let context = &pod(program)["securityContext"];
        let user = format!("{}:{}", context["runAsUser"], context["runAsGroup"]);
        assert_eq!(instruction(program, "USER"), user, "{program}");
        let ports: Vec<_> = ports(program).iter().map(|(_, port)| port.to_string()).collect();
        assert_eq!(instruction(program, "EXPOSE"), ports.join(" "), "{program}");
    }
}

/// Every image of the rendered manifests and of the samples.
fn named_images(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            named_images(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            let text = fs::read_to_string(&path).unwrap();
            let images = text.lines().filter_map(|line| line.trim().strip_prefix("image: "));
            found.extend(images.map(str::to_owned));
        }
    }
}

#[test]
fn no_image_is_at_a_name_that_somebody_else_could_own() {
    let mut images = Vec::new();
    for folder in ["manifests", "tests/rendered", "samples"] {
        named_images(&deploy::folder().join(folder), &mut images);
    }
    assert!(images.len() > 6, "{images:?}");
    // Of Kubernetes and of NVIDIA.
    let theirs = ["registry.k8s.io", "nvcr.io"];
    for image in images {
        let host = image.split('/').next().unwrap();
        assert!(host == REGISTRY || theirs.contains(&host), "{image}");
    }
}

#[test]
fn the_images_have_no_foreign_base() {
    let froms = read("Dockerfile");
    let mut froms: Vec<_> = froms.lines().filter_map(|line| line.strip_prefix("FROM ")).collect();
    froms.sort_unstable();
    let mut wanted = PROGRAMS.map(|program| format!("runtime AS {program}")).to_vec();
    wanted.push("scratch AS runtime".to_owned());
    assert_eq!(froms, wanted);
}

/// The packages of an architecture in the lock, without versions.
fn locked(arch: &str) -> Vec<String> {
    let lock = read("runtime.lock");
    let mut packages = Vec::new();
    for line in lock.lines().filter(|line| !line.starts_with('#')) {
        let [of, path, checksum] = line.split(' ').collect::<Vec<_>>().try_into().expect(line);
        assert!(path.starts_with("debian/") || path.starts_with("debian-security/"), "{line}");
        assert!(checksum.len() == 64 && checksum.bytes().all(|b| b.is_ascii_hexdigit()), "{line}");
        if of == arch {
            let file = path.rsplit('/').next().unwrap();
            assert!(
                file.ends_with(&format!("_{arch}.deb")) || file.ends_with("_all.deb"),
                "{line}"
            );
            packages.push(file.split('_').next().unwrap().to_owned());
        }
    }
    packages
}

#[test]
fn what_the_images_run_on_is_named_by_checksum_for_both_architectures() {
    let packages = locked("amd64");
    assert_eq!(packages, locked("arm64"));
    for needed in ["libc6", "libgcc-s1", "tzdata", "ca-certificates"] {
        assert!(packages.iter().any(|package| package == needed), "{needed}");
    }
}

/// `scripts/images.sh`, which cannot compile: its cargo fails.
fn images(part: &str) -> Command {
    let mut command = Command::new(root().join("scripts/images.sh"));
    command.arg(part).env("CARGO", "false");
    for setting in ["ARCHES", "REGISTRY", "TAG"] {
        command.env_remove(setting);
    }
    command
}

/// What a command that fails says on standard error.
fn refusal(command: &mut Command) -> String {
    let output = command.output().expect("bash runs");
    let begun = String::from_utf8(output.stdout).expect("UTF-8");
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(!output.status.success(), "{said}");
    assert_eq!(begun, "", "it begins before it looks");
    said
}

#[test]
fn an_architecture_without_images_is_refused_before_anything_is_compiled() {
    let said = refusal(images("build").env("ARCHES", "amd64 mips"));
    assert!(said.contains("ARCHES names mips"), "{said}");
    assert!(said.contains("ARCHES=\"amd64 arm64\""), "{said}");
}

#[test]
fn a_registry_that_is_no_host_with_a_path_is_refused() {
    for (registry, is_one) in [
        ("https://registry.example.com/plimsoll", false),
        ("registry.example.com/plimsoll/", false),
        ("registry.example.com/Plimsoll", false),
        ("registry.example.com/plimsoll:v1", false),
        // Each would be an account on Docker Hub.
        ("plimsoll", false),
        ("owner/plimsoll", false),
        ("", false),
        ("registry.example.com", true),
        ("ghcr.io/owner/my-plimsoll", true),
        ("localhost/plimsoll", true),
        ("127.0.0.1:5000/a/b_c", true),
    ] {
        let mut command = Command::new(root().join("scripts/require-registry.sh"));
        let output = command.env("REGISTRY", registry).output().expect("bash runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.success(), is_one, "{registry}: {said}");
        let says = said.contains("REGISTRY=registry.example.com/plimsoll");
        assert_eq!(says, !is_one, "{registry}: {said}");
    }
}
