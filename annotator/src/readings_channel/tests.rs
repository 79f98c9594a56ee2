//! What clients are told.

use std::collections::BTreeMap;

use api::readings::MAX_NODES;
use jiff::SignedDuration;
use placement::units::Ratio;
use proptest::prelude::*;

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

fn poll(table: &mut PolledTable, node: &str, second: i64, values: &[(&str, f64)]) {
    let reading = |(metric, value): &(&str, f64)| {
        (MetricName::from(*metric), Reading::new(Ratio::new(*value).unwrap(), at(second)))
    };
    let readings: Vec<_> = values.iter().map(reading).collect();
    table.record(&node.into(), &readings);
}

/// The names of an answer's nodes.
fn nodes(answer: &PolledReadings) -> Vec<&str> {
    answer.nodes.iter().map(NodeName::as_str).collect()
}

#[test]
fn a_client_gets_what_was_polled_since_its_last_answer_as_it_is_written() {
    let mut table = PolledTable::default();
    assert_eq!(table.answer(None, at(0)).nodes, []);
    poll(&mut table, "a", 0, &[("cpu", 0.123_456_7), ("mem", 0.5)]);
    poll(&mut table, "b", 10, &[("mem", 0.25)]);
    let all = table.answer(None, at(30));
    assert_eq!(nodes(&all), ["a", "b"]);
    let [cpu, mem] = &all.metrics[..] else { panic!("{all:?}") };
    assert_eq!(
        (&cpu.values[..], &cpu.ages[..]),
        (&[Some(0.12346), None][..], &[Some(30), None][..])
    );
    assert_eq!(mem.ages, [Some(30), Some(20)]);
    assert_eq!(nodes(&table.answer(Some(&all.version), at(31))), [] as [&str; 0]);
    poll(&mut table, "b", 60, &[("mem", 0.25)]);
    // A source in place of exporters shows the same sample again.
    poll(&mut table, "a", 0, &[("cpu", 0.123_456_7), ("mem", 0.5)]);
    poll(&mut table, "a", 60, &[]);
    let newer = table.answer(Some(&all.version), at(61));
    assert_eq!((nodes(&newer), &newer.metrics[0].ages[..]), (vec!["b"], &[Some(1)][..]));
    assert_eq!(PolledReadings::from_json(&newer.to_json()), Ok(newer));
}

#[test]
fn a_version_of_another_process_or_of_no_answer_asks_for_everything() {
    let (mut table, mut other) = (PolledTable::default(), PolledTable::default());
    poll(&mut table, "a", 0, &[("cpu", 0.5)]);
    poll(&mut other, "a", 0, &[("cpu", 0.5)]);
    let version = table.answer(None, at(0)).version;
    let other = other.answer(None, at(0)).version;
    let ahead = format!("{version}0");
    for unknown in [&other, &ahead, "", "-", "1", "x-y"] {
        assert_eq!(nodes(&table.answer(Some(unknown), at(0))), ["a"], "{unknown}");
    }
    assert_eq!(table.answer(Some(&version), at(0)).nodes, []);
}

#[test]
fn more_nodes_than_fit_into_an_answer_are_in_the_next() {
    let mut table = PolledTable::default();
    for number in 0..MAX_NODES + 7 {
        poll(&mut table, &format!("n{number}"), 0, &[("cpu", 0.5)]);
    }
    let first = table.answer(None, at(0));
    let second = table.answer(Some(&first.version), at(0));
    let third = table.answer(Some(&second.version), at(0));
    let counts = [&first, &second, &third].map(|answer| answer.nodes.len());
    assert_eq!(counts, [MAX_NODES, 7, 0]);
    assert_eq!(second.nodes[0].as_str(), format!("n{MAX_NODES}"));
}

/// What a client has: by node its newest readings.
type Known = BTreeMap<String, BTreeMap<String, Reading>>;

fn read(known: &mut Known, answer: &PolledReadings) {
    for (position, node) in answer.nodes.iter().enumerate() {
        let readings = answer.of_node(position);
        let readings = readings.map(|(metric, reading)| (metric.to_string(), reading.unwrap()));
        known.insert(node.to_string(), readings.collect());
    }
}

proptest! {
    #[test]
    fn a_client_that_reads_each_answer_has_what_a_new_one_is_told(
        steps in prop::collection::vec((0..20_usize, 0..8_u8, 0.0..1.0_f64), 1..200),
    ) {
        let mut table = PolledTable::default();
        let (mut known, mut version) = (Known::new(), None);
        for (second, (node, act, value)) in (0..).zip(steps) {
            let name = format!("n{node}");
            match act {
                // Clients learn of nodes that are gone from their own watch.
                0 => {
                    table.remove(&name.as_str().into());
                    known.remove(&name);
                }
                1 | 2 => {
                    let answer = table.answer(version.as_deref(), at(second));
                    read(&mut known, &answer);
                    version = Some(answer.version);
                    let mut fresh = Known::new();
                    read(&mut fresh, &table.answer(None, at(second) + SignedDuration::from_secs(9)));
                    prop_assert_eq!(&known, &fresh);
                }
                3 => poll(&mut table, &name, second, &[("mem", value)]),
                _ => poll(&mut table, &name, second, &[("cpu", value), ("mem", value / 2.0)]),
            }
        }
    }
}
