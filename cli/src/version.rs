//! `plimsoll version`: of this command, of the extender that answers, and of the programs in the cluster.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use crate::args::operate::Version;
use crate::cluster_access::Cluster;
use crate::cluster_access::objects::Pod;
use crate::extender;
use crate::output::{refuse_names, write_form};
use crate::table::{self, NONE};

/// This command's version.
pub(crate) const CLIENT: &str = env!("CARGO_PKG_VERSION");

/// A program of one version.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Program {
    pub(crate) program: String,
    /// As its image's tag or digest says; the extender that answers says it itself.
    pub(crate) version: String,
    pub(crate) pods: usize,
}

#[derive(Serialize)]
struct Versions {
    client: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    extender: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    programs: Vec<Program>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<String>,
}

/// Shows the versions. What cannot be read is told beside what can.
///
/// # Errors
///
/// If names are asked for, or `output` cannot be written.
pub(crate) fn version(flags: &Version, output: &mut dyn Write) -> Result<ExitCode> {
    refuse_names(flags.query.format)?;
    let mut answer =
        Versions { client: CLIENT, extender: None, programs: Vec::new(), problems: Vec::new() };
    if !flags.client {
        let cluster = Cluster::new(&flags.query.access);
        match cluster.extender().and_then(|url| extender::text(&format!("{url}/version"))) {
            // A text, or a text in quotes.
            Ok(text) => answer.extender = Some(text.trim().trim_matches('"').to_owned()),
            Err(error) => answer.problems.push(format!("extender: {error:#}")),
        }
        if !cluster.has_url() {
            match cluster.list_ours::<Pod>("pods") {
                Ok(pods) => answer.programs = of_pods(&pods),
                Err(error) => answer.problems.push(format!("programs: {error:#}")),
            }
        }
    }
    if write_form(&answer, [], flags.query.format, output)? {
        return Ok(code(&answer));
    }
    writeln!(output, "plimsoll   {CLIENT}")?;
    if let Some(extender) = &answer.extender {
        writeln!(output, "extender   {extender}")?;
    }
    if !answer.programs.is_empty() {
        writeln!(output)?;
        let row = |it: &Program| [it.program.clone(), it.version.clone(), it.pods.to_string()];
        table::write(output, ["PROGRAM", "IMAGE", "PODS"], answer.programs.iter().map(row))?;
    }
    for problem in &answer.problems {
        writeln!(output, "\n{}", crate::format::printable_lines(problem))?;
    }
    Ok(code(&answer))
}

fn code(answer: &Versions) -> ExitCode {
    if answer.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The programs of these pods, by name and image.
pub(crate) fn of_pods(pods: &[Pod]) -> Vec<Program> {
    let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
    for pod in pods {
        let Some(name) = pod.metadata.labels.get("app.kubernetes.io/name") else { continue };
        let own = pod.spec.containers.iter().find(|it| it.name == *name);
        let image = own.or(pod.spec.containers.first()).map(|it| it.image.as_str());
        let version = image.map_or(NONE, tag).to_owned();
        *counts.entry((name.clone(), version)).or_default() += 1;
    }
    let program = |((program, version), pods)| Program { program, version, pods };
    counts.into_iter().map(program).collect()
}

/// The tag of an image, or its digest without one.
pub(crate) fn tag(image: &str) -> &str {
    let (before, digest) = image.split_once('@').unwrap_or((image, "latest"));
    let name = before.rsplit('/').next().unwrap_or(before);
    name.split_once(':').map_or(digest, |(_, tag)| tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_is_found_behind_ports_and_before_digests() {
        assert_eq!(tag("registry:5000/plimsoll/annotator:0.1.0@sha256:ab"), "0.1.0");
        assert_eq!(tag("registry:5000/plimsoll/annotator@sha256:ab"), "sha256:ab");
        assert_eq!(tag("registry:5000/plimsoll/annotator"), "latest");
    }
}
