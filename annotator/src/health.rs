//! What the annotator says of its health: whether it leads, and whether exporters or the source in their place answer.
//!
//! Pure but for [`publish`]: from what other modules know to a [`Status`] with what to do.

use cluster::Leadership;
use daemon::{Context, Status};
use tokio::sync::watch::Receiver;

use crate::fleet;
use crate::metrics::Metrics;

/// Where readings come from, for the texts.
pub(crate) struct ReadingSource {
    /// Whether exporters are polled, and not a source in their place.
    pub(crate) is_exporters: bool,
    /// What to look at where no node has a metric.
    pub(crate) missing_hint: &'static str,
}

/// Publishes what is known. `identity` is this replica's name in the Lease.
pub(crate) fn publish(
    context: &Context,
    metrics: &Metrics,
    leadership: &Leadership,
    identity: String,
    status: &Receiver<fleet::Status>,
    source: ReadingSource,
) {
    let health = context.health();
    let lease = leadership.clone();
    health.look("leader", move || {
        let (mut other, mut lost) = (None, None);
        match lease.holder() {
            Some(holder) if holder.is_lost() => lost = Some(holder.identity),
            Some(holder) if holder.identity != identity => other = Some(holder.identity),
            Some(_) | None => {}
        }
        leader(lease.is_held(), other, lost)
    });
    if !source.is_exporters {
        let metrics = metrics.clone();
        health.look("readings-source", move || of_source(metrics.last_query()));
    }
    let (lease, status) = (leadership.clone(), status.clone());
    health.look("readings", move || {
        if !lease.is_held() {
            return Status::ok("another replica polls");
        }
        readings(&status.borrow(), &source)
    });
}

/// `other`: the replica that leads; `lost`: the one whose Lease has expired.
fn leader(leads: bool, other: Option<String>, lost: Option<String>) -> Status {
    const TODO: &str = "can it renew the Lease plimsoll-annotator (docs/operations.md#a-slow-api-server)? See the check `rights` too";
    match (other, lost) {
        _ if leads => Status::ok("leads"),
        (_, Some(lost)) => {
            Status::failed(format!("no replica leads: {lost} did not renew its Lease"), TODO)
        }
        (Some(leader), None) => Status::ok(format!("stands by for {leader}")),
        (None, None) => Status::failed("no replica leads, so no reading is written", TODO),
    }
}

fn of_source(last: Option<&str>) -> Status {
    match last {
        None => Status::unknown("it was not asked yet", "look again in a minute"),
        Some("ok") => Status::ok("it answers"),
        Some(outcome) => Status::failed(
            format!("the last query of the source in place of exporters failed: {outcome}"),
            "is its address right, and does it answer the annotator (docs/readings.md)?",
        ),
    }
}

fn readings(fleet: &fleet::Status, source: &ReadingSource) -> Status {
    let fleet::Status { nodes, silent, answered, missing, .. } = fleet;
    if *nodes == 0 {
        return Status::unknown(
            "no node is known, so that none is measured",
            "do the nodes have the labels of --node-selector?",
        );
    }
    if *silent > 0 {
        let text = format!("{silent} of {nodes} exporters do not answer the annotator");
        let todo = "does curl NODE:19101/statistics answer from another node? A firewall between nodes is the usual \
                    cause (docs/troubleshoot.md#readings)";
        return if silent >= nodes {
            Status::failed(text, todo)
        } else {
            Status::warning(text, todo)
        };
    }
    let lacking = missing.iter().find(|(_, lacking)| *answered > 0 && **lacking >= *answered);
    if let Some((metric, _)) = lacking {
        return Status::warning(format!("no node has the metric {metric}"), source.missing_hint);
    }
    if source.is_exporters {
        Status::ok(format!("{answered} of {nodes} exporters answer the annotator"))
    } else {
        Status::ok(format!("{answered} of {nodes} nodes are in the source"))
    }
}

#[cfg(test)]
mod tests {
    use api::health::ConditionState::{Failed, Ok, Unknown, Warning};

    use super::*;

    const EXPORTERS: ReadingSource = ReadingSource { is_exporters: true, missing_hint: "is it?" };

    fn fleet(nodes: usize, silent: usize) -> fleet::Status {
        fleet::Status { nodes, silent, answered: nodes - silent, ..fleet::Status::default() }
    }

    #[test]
    fn silent_exporters_are_told_and_all_of_them_are_a_fault() {
        let states = [(0, 0), (2, 0), (2, 1), (2, 2)]
            .map(|(nodes, silent)| readings(&fleet(nodes, silent), &EXPORTERS).state);
        assert_eq!(states, [Unknown, Ok, Warning, Failed]);
    }

    #[test]
    fn a_metric_that_no_node_has_is_told_with_what_to_look_at() {
        let mut fleet = fleet(2, 0);
        fleet.missing = [("mem".into(), 1)].into();
        assert_eq!(readings(&fleet, &EXPORTERS).state, Ok);
        fleet.missing = [("mem".into(), 2)].into();
        assert_eq!(
            readings(&fleet, &EXPORTERS),
            Status::warning("no node has the metric mem", "is it?")
        );
    }

    #[test]
    fn a_replica_that_neither_leads_nor_knows_a_leader_says_so() {
        let other = Some("b".to_owned());
        let lost = Some("b".to_owned());
        let states =
            [(true, None, None), (false, other, None), (false, None, lost), (false, None, None)]
                .map(|(leads, other, lost)| leader(leads, other, lost).state);
        assert_eq!(states, [Ok, Ok, Failed, Failed]);
    }

    #[test]
    fn the_last_query_of_a_source_counts() {
        assert_eq!(
            [None, Some("ok"), Some("timeout")].map(|it| of_source(it).state),
            [Unknown, Ok, Failed]
        );
    }
}
