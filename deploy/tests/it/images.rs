//! Images are pinned, and built by a Dockerfile that agrees with the manifests.

use crate::manifests::{PROGRAMS, container, pod, ports, read, yaml};

const VERSION: &str = env!("CARGO_PKG_VERSION");

#[test]
fn every_image_has_the_tag_of_this_version() {
    for program in PROGRAMS {
        assert_eq!(container(program)["image"], format!("plimsoll/{program}:{VERSION}"));
        assert_eq!(container(program)["imagePullPolicy"], "IfNotPresent");
    }
}

#[test]
fn one_list_names_every_image_so_that_a_registry_is_set_in_one_place() {
    let kustomization = yaml("kustomization.yaml");
    let images = kustomization["images"].as_array().unwrap();
    let mut names: Vec<_> = images.iter().map(|image| image["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, PROGRAMS.map(|program| format!("plimsoll/{program}")));
    assert!(images.iter().all(|image| image["newTag"] == VERSION));
}

/// The lines of the Dockerfile's stage that is named as the program.
fn stage(program: &str) -> Vec<String> {
    let dockerfile = read("Dockerfile");
    let lines = dockerfile
        .lines()
        .skip_while(|line| *line != format!("FROM ${{RUNTIME_BASE}} AS {program}"));
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
        assert_eq!(
            instruction(program, "COPY"),
            format!("--from=binaries /binaries/{program} /usr/local/bin/")
        );
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

#[test]
fn no_image_is_taken_by_a_floating_tag() {
    for line in read("Dockerfile")
        .lines()
        .filter(|line| line.starts_with("ARG") || line.starts_with("FROM"))
    {
        assert!(!line.contains(":latest"), "{line}");
    }
}
