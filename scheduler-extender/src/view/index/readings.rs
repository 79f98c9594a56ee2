//! The readings of nodes by their two sources: the nodes' annotations, and the annotator's answers over its own
//! channel.
//!
//! Invariants: which readings count follows from what each source said last, the policy and the time; which source
//! came first makes no difference. A reading of either source passes the same checks. Only the API server
//! authenticates who wrote a reading, so an answer never takes a node below a limit that its annotations show it to be
//! over, and of what limits of network and disk are judged by the annotations alone count while they are fresh. An
//! answer brings in no metric that the policy does not use.

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::Arc;

use api::readings::PolledReadings;
use jiff::Timestamp;
use placement::load::{MetricId, Readings, ResolvedLimit, ResolvedRules};
use placement::reading::{Reading, ReadingError, newest};
use placement::units::{MetricName, NodeName};

use super::refused::RefusedReading;
use super::{Index, Notice};

/// What the sources said of one node's readings.
#[derive(Debug, Clone, Default)]
pub(super) struct ReadingSources {
    /// The readings of its annotations.
    pub(super) annotated: Readings,
    /// The newest readings of the annotator's answers.
    pub(super) polled: Readings,
    /// When the first annotation grows too old that counts in place of a newer answer.
    held_until: Option<Timestamp>,
}

impl Index {
    /// Applies an answer of the annotator. Nodes that the watch has not shown are left out.
    pub fn apply_polled(&mut self, polled: &PolledReadings, now: Timestamp) {
        self.at(now);
        let policy = Arc::clone(&self.policy);
        let used: HashSet<&MetricName> = policy.policy.metrics().into_iter().collect();
        for (position, name) in polled.nodes.iter().enumerate() {
            let node = self.nodes.get(name);
            let Some(load) = node.and_then(|node| node.load.as_ref()) else { continue };
            // An older reading is of another machine that had the name before. Readings have whole seconds.
            let joined_at = load.created_at.map_or(i64::MIN, Timestamp::as_second);
            let is_of_node = |reading: &Reading| reading.at.as_second() >= joined_at;
            let counts = |(metric, reading): &(&MetricName, Result<Reading, ReadingError>)| {
                used.contains(metric) && reading.as_ref().map_or(true, is_of_node)
            };
            let readings = self.believed(name, polled.of_node(position).filter(counts));
            self.nodes.change_known(name, |node| {
                let newest = |_, known, new| newest(known, new, now);
                node.sources.polled = node.sources.polled.merged(&readings, newest);
                node.choose_readings(&policy, now);
            });
        }
    }

    /// Another policy is in force, which may have other limits.
    pub(super) fn choose_all_readings(&mut self) {
        let (policy, now) = (Arc::clone(&self.policy), self.now);
        let used: HashSet<MetricId> =
            policy.policy.metrics().into_iter().map(|name| self.metrics.of_policy(name)).collect();
        let none = Readings::default();
        self.nodes.change_all(|node| {
            let keep =
                |metric, polled: Option<Reading>, _| polled.filter(|_| used.contains(&metric));
            node.sources.polled = node.sources.polled.merged(&none, keep);
            node.choose_readings(&policy, now);
        });
    }

    /// Annotations that counted in place of newer answers and are too old by now do so no longer.
    pub(super) fn release_held_readings(&mut self) {
        let (policy, now) = (Arc::clone(&self.policy), self.now);
        let mut due: Vec<NodeName> = Vec::new();
        for node in self.nodes.iter() {
            if node.sources.held_until.is_some_and(|until| until <= now) {
                due.push(node.name.clone());
            }
        }
        for name in due {
            self.nodes.change_known(&name, |node| node.choose_readings(&policy, now));
        }
    }

    /// The plausible readings. The others are counted if the policy uses the metric.
    pub(super) fn believed<'m>(
        &mut self,
        node: &NodeName,
        readings: impl Iterator<Item = (&'m MetricName, Result<Reading, ReadingError>)>,
    ) -> Readings {
        let mut believed = Vec::new();
        for (metric, reading) in readings {
            let refused = match reading {
                Ok(reading) => match reading.check(metric, self.now) {
                    Ok(reading) => {
                        believed.push((metric.clone(), reading));
                        continue;
                    }
                    Err(error) => RefusedReading::from(error),
                },
                Err(error) => RefusedReading::from(error),
            };
            let is_used = self.policy.policy.metrics().contains(&metric);
            if is_used && self.refused_readings.count(&refused, self.now) {
                let (node, metric) = (node.clone(), metric.to_string());
                let error = refused.to_string();
                self.notices.push(Notice::RefusedReading { node, metric, error });
            }
        }
        Readings::new(&mut self.metrics, believed)
    }
}

impl ReadingSources {
    /// For each metric the newer reading, unless the annotation holds.
    pub(super) fn choose(&mut self, rules: &ResolvedRules, now: Timestamp) -> Readings {
        let held_until = Cell::new(None);
        let chosen = self.annotated.merged(&self.polled, |metric, annotated, polled| {
            let newest = newest(annotated, polled, now);
            let (Some(annotated), Some(newest)) = (annotated, newest) else { return newest };
            let Some(until) = held(rules, metric, annotated, newest, now) else {
                return Some(newest);
            };
            held_until.set(held_until.get().into_iter().chain([until]).min());
            Some(annotated)
        });
        self.held_until = held_until.get();
        chosen
    }
}

/// Until when a fresh annotation counts in place of a newer answer, which would take the node below a limit, or by
/// which a limit of network or disk is judged; `None` where it does not.
fn held(
    rules: &ResolvedRules,
    metric: MetricId,
    annotated: Reading,
    newest: Reading,
    now: Timestamp,
) -> Option<Timestamp> {
    if newest == annotated {
        return None;
    }
    let age_of = |limit: &ResolvedLimit| {
        let of_demand = limit.metric.of_demand_reading(metric);
        let is_below = || annotated.value.get() > limit.max && newest.value.get() <= limit.max;
        let of_metric = limit.metric.max_age.filter(|_| limit.metric.id == metric && is_below());
        of_demand.or(of_metric).filter(|age| annotated.is_fresh(now, *age))
    };
    let age = rules.limits.iter().filter_map(age_of).max()?;
    annotated.at.checked_add(age).ok()
}

#[cfg(test)]
mod tests {
    use cluster::{Event, NodeFacts};
    use placement::policy::LoadPolicy;
    use placement::units::Ratio;
    use proptest::prelude::*;

    use super::*;
    use crate::view::{View, fixtures};

    const CPU: &str = "cpu_busy_avg_5m";
    const MEMORY: &str = "mem_usage_avg_5m";

    /// Readings of CPU count for 8 minutes, and a node above `limit` takes no pods.
    fn policy(limit: f64) -> LoadPolicy {
        let text = format!(
            "apiVersion: plimsoll.dev/v1alpha1\nkind: SchedulingPolicy\nspec:\n  metrics:\n  \
             - {{name: {CPU}, period: 1m, maxAge: 8m, limit: {limit}, weight: 1}}\n  \
             - {{name: {MEMORY}, period: 1m, weight: 1}}\n"
        );
        LoadPolicy::from_yaml(&text).unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    fn reading(metric: &str, value: f64, second: i64) -> (MetricName, Reading) {
        (metric.into(), Reading::new(Ratio::new(value).unwrap(), at(second)))
    }

    /// A node whose annotations have these readings.
    fn annotated(name: &str, readings: &[(MetricName, Reading)]) -> NodeFacts {
        let readings = readings.iter().map(|(metric, reading)| (metric.clone(), Ok(*reading)));
        NodeFacts { readings: readings.collect(), ..fixtures::node(name, Vec::new()) }
    }

    fn show(view: &View, node: NodeFacts, now: i64) {
        view.apply_nodes(Event::Applied(node), at(now));
    }

    fn answer(view: &View, name: &str, readings: &[(MetricName, Reading)], now: i64) {
        let mut answer = PolledReadings::new("1-1".to_owned(), at(now));
        assert!(answer.push(name.into(), readings));
        view.change(|index| index.apply_polled(&answer, at(now)));
    }

    /// The metric's reading that counts, and its second.
    fn counts(view: &View, name: &str, metric: &str) -> Option<(f64, i64)> {
        let metric = view.change(|index| index.metrics.of_node(&metric.into())).unwrap();
        let reading = view.read().load(name)?.readings.get(metric)?;
        Some((reading.value.get(), reading.at.as_second() - at(0).as_second()))
    }

    fn cpu(view: &View) -> Option<(f64, i64)> {
        counts(view, "a", CPU)
    }

    #[test]
    fn the_newer_of_an_annotation_and_an_answer_counts_for_each_metric() {
        let view = fixtures::view_under(policy(0.8));
        show(&view, annotated("a", &[reading(CPU, 0.3, 0), reading(MEMORY, 0.3, 60)]), 70);
        answer(&view, "a", &[reading(CPU, 0.4, 60), reading(MEMORY, 0.4, 0)], 70);
        assert_eq!(cpu(&view), Some((0.4, 60)));
        assert_eq!(counts(&view, "a", MEMORY), Some((0.3, 60)));
        show(&view, annotated("a", &[reading(CPU, 0.5, 120)]), 130);
        assert_eq!(cpu(&view), Some((0.5, 120)));
        assert_eq!(counts(&view, "a", MEMORY), Some((0.4, 0)));
        // An older answer, as of a replica that led before.
        answer(&view, "a", &[reading(CPU, 0.6, 30)], 130);
        show(&view, annotated("a", &[]), 130);
        assert_eq!(cpu(&view), Some((0.4, 60)));
    }

    #[test]
    fn an_answer_takes_no_node_below_a_limit_that_its_annotation_is_over() {
        let view = fixtures::view_under(policy(0.8));
        show(&view, annotated("a", &[reading(CPU, 0.85, 0)]), 10);
        answer(&view, "a", &[reading(CPU, 0.1, 10)], 10);
        assert_eq!(cpu(&view), Some((0.85, 0)));
        // Still over it: what was measured last counts.
        answer(&view, "a", &[reading(CPU, 0.9, 20)], 20);
        assert_eq!(cpu(&view), Some((0.9, 20)));
        answer(&view, "a", &[reading(CPU, 0.7, 40)], 40);
        assert_eq!(cpu(&view), Some((0.85, 0)));
        // The annotation of a node that has cooled is written within seconds.
        show(&view, annotated("a", &[reading(CPU, 0.75, 30)]), 50);
        assert_eq!(cpu(&view), Some((0.7, 40)));
        // Another limit.
        view.change(|index| index.set_policy(policy(0.6)));
        answer(&view, "a", &[reading(CPU, 0.5, 50)], 50);
        assert_eq!(cpu(&view), Some((0.75, 30)));
        view.change(|index| index.set_policy(policy(0.8)));
        assert_eq!(cpu(&view), Some((0.5, 50)));
    }

    #[test]
    fn an_annotation_over_a_limit_holds_no_longer_than_it_is_fresh() {
        let view = fixtures::view_under(policy(0.8));
        show(&view, annotated("a", &[reading(CPU, 0.85, 0)]), 0);
        answer(&view, "a", &[reading(CPU, 0.1, 479)], 479);
        assert_eq!(cpu(&view), Some((0.85, 0)));
        // By time alone.
        view.change(|index| index.tick(at(479)));
        assert_eq!(cpu(&view), Some((0.85, 0)));
        view.change(|index| index.tick(at(480)));
        assert_eq!(cpu(&view), Some((0.1, 479)));
    }

    #[test]
    fn what_limits_of_a_demand_are_judged_by_is_that_of_annotations_while_it_is_fresh() {
        const SENT: &str = "network_transmit_bytes_avg_5m";
        const SPEED: &str = "network_speed_bytes_active";
        let text = format!(
            "apiVersion: plimsoll.dev/v1alpha1\nkind: SchedulingPolicy\nspec:\n  metrics:\n  \
             - {{name: {SPEED}, period: 1m, maxAge: 8m}}\n  - {{name: {SENT}, period: 1m, maxAge: 8m}}\n  \
             demand: {{egress: {{limit: 0.8, measured: {SENT}}}}}\n"
        );
        let view = fixtures::view_under(LoadPolicy::from_yaml(&text).unwrap());
        show(&view, annotated("a", &[reading(SPEED, 1.25e9, 0), reading(SENT, 1.2e9, 0)]), 0);
        answer(&view, "a", &[reading(SPEED, 1e15, 10), reading(SENT, 0.0, 10)], 10);
        let both = || [SPEED, SENT].map(|metric| counts(&view, "a", metric).unwrap().0);
        assert_eq!(both(), [1.25e9, 1.2e9]);
        view.change(|index| index.tick(at(480)));
        assert_eq!(both(), [1e15, 0.0]);
    }

    #[test]
    fn an_answer_brings_in_no_metric_that_the_policy_does_not_use() {
        let view = fixtures::view_under(policy(0.8));
        show(&view, annotated("a", &[]), 0);
        answer(&view, "a", &[reading(CPU, 0.4, 0), reading("invented", 0.4, 0)], 0);
        assert_eq!((cpu(&view), counts(&view, "a", "invented")), (Some((0.4, 0)), None));
        // What a policy used before goes with it.
        let other = "apiVersion: plimsoll.dev/v1alpha1\nkind: SchedulingPolicy\nspec:\n  metrics:\n  \
                     - {name: mem_usage_avg_5m, period: 1m, weight: 1}\n";
        view.change(|index| index.set_policy(LoadPolicy::from_yaml(other).unwrap()));
        assert_eq!(cpu(&view), None);
    }

    #[test]
    fn answers_pass_the_checks_of_annotations() {
        let view = fixtures::view_under(policy(0.8));
        show(&view, annotated("a", &[]), 0);
        answer(&view, "a", &[reading(CPU, 0.4, 0)], 0);
        answer(&view, "a", &[reading(CPU, 0.0, 61)], 0);
        answer(&view, "a", &[reading(CPU, 40.0, 30)], 0);
        let mut negative = PolledReadings::new("1-1".to_owned(), at(30));
        assert!(negative.push("a".into(), &[reading(CPU, 0.5, 30)]));
        negative.metrics[0].values[0] = Some(-0.5);
        view.change(|index| index.apply_polled(&negative, at(30)));
        assert_eq!(cpu(&view), Some((0.4, 0)));
        let causes = [("ahead", 1), ("not-a-fraction", 1), ("malformed", 1)];
        assert_eq!(view.ask(Index::refused_readings), causes);
    }

    #[test]
    fn an_answer_concerns_nodes_that_the_watch_shows_and_no_machine_before_them() {
        let view = fixtures::view_under(policy(0.8));
        answer(&view, "a", &[reading(CPU, 0.4, 0)], 0);
        assert_eq!(view.read().names().len(), 0);
        show(&view, annotated("a", &[]), 0);
        assert_eq!(cpu(&view), None);
        answer(&view, "a", &[reading(CPU, 0.4, 0)], 0);
        // The node is deleted and joins again.
        fixtures::leave(&view, "a");
        show(&view, annotated("a", &[]), 0);
        assert_eq!(cpu(&view), None);
        answer(&view, "a", &[reading(CPU, 0.4, 0)], 0);
        assert_eq!(cpu(&view), Some((0.4, 0)));
        // The same while the watch was interrupted.
        let created = |second| NodeFacts { created_at: Some(at(second)), ..annotated("a", &[]) };
        show(&view, created(10), 20);
        assert_eq!(cpu(&view), None);
        answer(&view, "a", &[reading(CPU, 0.4, 9)], 20);
        assert_eq!(cpu(&view), None);
        answer(&view, "a", &[reading(CPU, 0.5, 10)], 20);
        show(&view, created(10), 21);
        assert_eq!(cpu(&view), Some((0.5, 10)));
    }

    #[test]
    fn readings_that_are_ahead_after_the_clock_was_set_back_give_way() {
        let view = fixtures::view_under(policy(0.8));
        show(&view, annotated("a", &[reading(CPU, 0.9, 3600)]), 3600);
        answer(&view, "a", &[reading(CPU, 0.4, 3600)], 3600);
        answer(&view, "a", &[reading(CPU, 0.5, 0)], 0);
        assert_eq!(cpu(&view), Some((0.5, 0)));
        answer(&view, "a", &[reading(CPU, 0.6, 60)], 60);
        assert_eq!(cpu(&view), Some((0.6, 60)));
    }

    /// Readings of some of the two metrics, also implausible ones.
    fn some_readings() -> impl Strategy<Value = Vec<(MetricName, Reading)>> {
        let of = |metric| {
            let reading = (0.0..1.3_f64, -900..90_i64);
            prop::option::of(
                reading.prop_map(move |(value, second)| reading_of(metric, value, second)),
            )
        };
        (of(CPU), of(MEMORY)).prop_map(|(cpu, memory)| cpu.into_iter().chain(memory).collect())
    }

    fn reading_of(metric: &str, value: f64, second: i64) -> (MetricName, Reading) {
        reading(metric, (value * 10.0).round() / 10.0, second / 30 * 30)
    }

    proptest! {
        #[test]
        fn it_makes_no_difference_which_source_came_first(
            annotations in prop::collection::vec(some_readings(), 0..5),
            answers in prop::collection::vec(some_readings(), 0..5),
            order in any::<u16>(),
        ) {
            let after = |annotations_first: &dyn Fn(usize) -> bool| {
                let view = fixtures::view_under(policy(0.8));
                show(&view, annotated("a", &[]), 0);
                let (mut annotations, mut answers) = (annotations.iter(), answers.iter());
                for step in 0..annotations.len() + answers.len() {
                    let next = if annotations_first(step) { annotations.next() } else { None };
                    match next {
                        Some(readings) => show(&view, annotated("a", readings), 0),
                        None => match answers.next() {
                            Some(readings) => answer(&view, "a", readings, 0),
                            None => annotations.by_ref().take(1).for_each(|readings| {
                                show(&view, annotated("a", readings), 0);
                            }),
                        },
                    }
                }
                [CPU, MEMORY].map(|metric| counts(&view, "a", metric))
            };
            let annotations_first = after(&|_| true);
            prop_assert_eq!(after(&|_| false), annotations_first);
            prop_assert_eq!(after(&|step| order >> step & 1 == 1), annotations_first);
        }
    }
}
