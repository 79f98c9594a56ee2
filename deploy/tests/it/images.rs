//! Images are at no address that others could own, hold nothing that is not pinned, and agree with the manifests.

use std::fs;
use std::path::Path;

use crate::manifests::{PROGRAMS, REGISTRY, container, pod, ports, read, strings, workload, yaml};

const VERSION: &str = env!("CARGO_PKG_VERSION");

#[test]
fn every_image_has_the_tag_of_this_version() {
    for program in PROGRAMS {
        assert_eq!(container(program)["image"], format!("{REGISTRY}/{program}:{VERSION}"));
        assert_eq!(container(program)["imagePullPolicy"], "IfNotPresent");
    }
}

#[test]
fn one_list_names_every_image_so_that_a_tag_is_set_in_one_place() {
    let kustomization = yaml("kustomization.yaml");
    let images = kustomization["images"].as_array().unwrap();
    let mut names: Vec<_> = images.iter().map(|image| image["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, PROGRAMS.map(|program| format!("{REGISTRY}/{program}")));
    assert!(images.iter().all(|image| image["newTag"] == VERSION));
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

/// Every image of the base, of the components and of the samples.
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
    for folder in ["base", "components", "samples"] {
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
fn the_setting_of_the_registry_reaches_every_workload_and_init_container() {
    let component = yaml("registry/kustomization.yaml");
    let targets = component["replacements"][0]["targets"].as_array().unwrap();
    for program in PROGRAMS {
        let workload = workload(program);
        let target = targets.iter().find(|target| {
            let name = target["select"]["name"].as_str().unwrap();
            target["select"]["kind"] == workload["kind"]
                && name.trim_end_matches(".*") == workload["metadata"]["name"]
        });
        let paths = strings(&target.expect(program)["fieldPaths"]);
        assert!(paths.contains(&"spec.template.spec.containers.*.image".to_owned()), "{program}");
        let starts = !pod(program)["initContainers"].is_null();
        let path = "spec.template.spec.initContainers.*.image".to_owned();
        assert_eq!(paths.contains(&path), starts, "{program}");
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
