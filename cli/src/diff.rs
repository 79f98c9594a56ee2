//! `plimsoll policy diff`: where the pods of the last hour would have gone under the shadow policy.

use std::io::Write;

use anyhow::Result;
use api::shadow::{Choice, Difference, Shadow, ShadowedPod};

use crate::args::Diff;
use crate::cluster_access::Cluster;
use crate::extender;
use crate::format;
use crate::output::write_form;
use crate::table::{self, NONE, or_none};

/// Requests the comparison from the extender and writes its answer, as a table or as JSON.
///
/// # Errors
///
/// Where the extender does not answer, or has no shadow policy.
pub(crate) fn diff(flags: &Diff, output: &mut dyn Write) -> Result<()> {
    let shadow: Shadow = extender::get(&Cluster::new(&flags.query.access), "/shadow")?;
    let differing =
        |pod: &ShadowedPod| (!pod.differs.is_empty()).then(|| format!("pod/{}", pod.pod.name));
    if !write_form(&shadow, shadow.pods.iter().filter_map(differing), flags.query.format, output)? {
        write_table(&shadow, output)?;
    }
    Ok(())
}

fn write_table(shadow: &Shadow, output: &mut dyn Write) -> Result<()> {
    let mut pods: Vec<&ShadowedPod> = shadow.pods.iter().collect();
    // The sort is stable, so the newest stay first.
    pods.sort_by_key(|pod| pod.differs.is_empty());
    if !pods.is_empty() {
        let heading = ["POD", "NODE", "BEST BY POLICY", "BEST BY SHADOW", "DIFFERS"];
        table::write(output, heading, pods.iter().map(|pod| row(pod)))?;
        writeln!(output)?;
    }
    let score = count(shadow, Difference::Score);
    let filter = count(shadow, Difference::Filter);
    let all = format::count(pods.len(), "pod");
    writeln!(
        output,
        "{all} in the last hour: {score} with other best nodes, {filter} with other nodes rejected."
    )?;
    writeln!(
        output,
        "kube-scheduler adds the points of its own plugins, so a pod need not go to a best node."
    )?;
    Ok(())
}

/// How many pods differ so.
fn count(shadow: &Shadow, difference: Difference) -> usize {
    shadow.pods.iter().filter(|pod| pod.differs.contains(&difference)).count()
}

fn row(pod: &ShadowedPod) -> [String; 5] {
    let word = |difference: &Difference| match difference {
        Difference::Filter => "filter",
        Difference::Score => "score",
    };
    let differs: Vec<&str> = pod.differs.iter().map(word).collect();
    [
        format!("{}/{}", pod.pod.namespace, pod.pod.name),
        or_none(pod.node.clone()),
        best(&pod.policy),
        best(&pod.shadow),
        if differs.is_empty() { NONE.to_owned() } else { differs.join(",") },
    ]
}

/// A best node and its score, and how many more there are: `worker-2 61 +3`.
fn best(choice: &Choice) -> String {
    let (Some(node), Some(score)) = (choice.best.first(), choice.best_score) else {
        return NONE.to_owned();
    };
    match choice.best_nodes.saturating_sub(1) {
        0 => format!("{node} {score}"),
        more => format!("{node} {score} +{more}"),
    }
}
