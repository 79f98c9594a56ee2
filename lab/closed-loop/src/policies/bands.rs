//! A kube-scheduler that asks nobody: the annotator's taint of hot nodes (`PreferNoSchedule`), and node bands by the
//! labels that pods prefer.
//!
//! Each node is read once a minute. Bands are written in one burst every half hour, by the mean of looks since the last
//! one; the taint a minute after a load has crossed the shipped policy's limit.

use placement::bands::Band;
use placement::load::typical_load;
use placement::taint::clear_line;

use super::{Hook, PodView, Policy, Settings};
use crate::cluster::NodeId;
use crate::readings::Samples;
use crate::time::{HOUR, MINUTE, Step};
use crate::world::Observation;

/// The window of `avg_5m`.
const WINDOW: Step = 5 * MINUTE;
/// The time between two bursts of bands, and between two looks.
const ROUND: Step = HOUR / 2;
const LOOK: Step = 5 * MINUTE;
/// The shipped policy's limit of CPU, and how far below it the taint is cleared.
const LIMIT: f64 = 0.80;
const MARGIN: f64 = 0.05;
/// Points of a node in the last band, and how many more those of each band before it have.
const LAST: i64 = 50;
const OF_A_BAND: i64 = 7;
/// Points of a node without the taint, by the weights of TaintToleration (3) and NodeAffinity (2).
const UNTAINTED: i64 = 150;

#[derive(Clone)]
pub(super) struct NodeBands {
    bands: bool,
    nodes: Vec<Node>,
    writes: u64,
    steps: u64,
}

#[derive(Clone)]
struct Node {
    /// CPU and memory, as fractions of the node.
    samples: [Samples; 2],
    /// The sum and the number of looks since the last burst.
    above: (f64, u32),
    band: Band,
    /// Since when it is over the limit.
    over: Option<Step>,
    is_hot: bool,
}

impl NodeBands {
    /// Takes `bands` out of the settings: `off` leaves the taint alone.
    pub(super) fn new(settings: &mut Settings) -> anyhow::Result<Self> {
        let bands = settings.take_switch("bands")?.unwrap_or(true);
        Ok(Self { bands, nodes: Vec::new(), writes: 0, steps: 0 })
    }

    /// Takes down how far each node's load is above what is typical.
    fn look(&mut self) {
        let typical = [0, 1].map(|at| {
            let known = self.nodes.iter().filter_map(|node| node.samples[at].mean());
            typical_load(&mut known.collect::<Vec<f64>>())
        });
        for node in &mut self.nodes {
            let [cpu, memory] = &node.samples;
            let (Some(cpu), Some(memory)) = (cpu.mean(), memory.mean()) else { continue };
            node.above.0 += (cpu - typical[0]).max(memory - typical[1]);
            node.above.1 += 1;
        }
    }

    fn write_bands(&mut self) {
        for node in &mut self.nodes {
            let (sum, looks) = std::mem::take(&mut node.above);
            let above = (looks > 0).then(|| sum / f64::from(looks));
            let band = Band::of_cpu(Band::MIDDLE, above, Some(node.band));
            self.writes += u64::from(band != node.band);
            node.band = band;
        }
    }
}

impl Policy for NodeBands {
    fn hook(&self) -> Hook {
        Hook::Plugin { weight: 2 }
    }

    fn copy(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }

    fn writes_an_hour(&self) -> Option<f64> {
        Some(self.writes as f64 / self.steps.max(1) as f64 * f64::from(HOUR))
    }

    fn observe(&mut self, observation: &Observation<'_>) {
        let now = observation.now;
        let new = || Node {
            samples: [Samples::new(WINDOW), Samples::new(WINDOW)],
            above: (0.0, 0),
            band: Band::MIDDLE,
            over: None,
            is_hot: false,
        };
        self.nodes.resize_with(observation.nodes.len(), new);
        self.steps += observation.nodes.len() as u64;
        for (id, (node, sample)) in self.nodes.iter_mut().zip(observation.nodes).enumerate() {
            if !sample.up {
                node.samples.iter_mut().for_each(Samples::clear);
                continue;
            }
            node.samples[0].push(now, sample.cpu);
            node.samples[1].push(now, sample.memory);
            if (now + id as Step).is_multiple_of(MINUTE)
                && let Some(load) = node.samples[0].mean()
            {
                node.over = (load > LIMIT).then(|| node.over.unwrap_or(now));
                let lasts = node.over.is_some_and(|since| now - since >= MINUTE);
                let is_hot = lasts || (node.is_hot && load > clear_line(LIMIT, MARGIN));
                self.writes += u64::from(is_hot != node.is_hot);
                node.is_hot = is_hot;
            }
        }
        if now.is_multiple_of(LOOK) {
            self.look();
        }
        if self.bands && now.is_multiple_of(ROUND) {
            self.write_bands();
        }
    }

    fn score(&mut self, _pod: &PodView, nodes: &[NodeId], points: &mut [i64], _now: Step) {
        let sum = |node: &NodeId| LAST + OF_A_BAND * i64::from(7 - self.nodes[*node].band.number());
        let most = nodes.iter().map(sum).max().unwrap_or(1);
        for (node, points) in nodes.iter().zip(points) {
            *points = 100 * sum(node) / most;
            *points += if self.nodes[*node].is_hot { 0 } else { UNTAINTED };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::AppKind;
    use crate::world::NodeSample;

    const POD: PodView = PodView { id: 7, app: 0, kind: AppKind::Job, cpu: 4_000, memory: 8_192 };

    fn points(settings: &str, cpu: [f64; 3], steps: Step) -> [i64; 3] {
        let mut bands = NodeBands::new(&mut settings.parse().unwrap()).unwrap();
        let samples = cpu.map(|cpu| NodeSample { up: true, cpu, memory: 0.25, best_effort: 0.0 });
        (1..=steps).for_each(|now| bands.observe(&Observation::of_nodes(now, &samples)));
        let mut points = [0; 3];
        bands.score(&POD, &[0, 1, 2], &mut points, steps);
        points
    }

    #[test]
    fn nodes_lose_by_the_half_hour_for_what_their_load_is_above_the_typical_one() {
        let cpu = [0.1, 0.4, 0.6];
        assert_eq!(points("bands=on", cpu, ROUND - 1), [250; 3]);
        // The median is 0.4, 1.6 bands below the last one: it has 64 points of 78. The first one's memory is typical.
        assert_eq!(points("bands=on", cpu, ROUND), [250, 250, 232]);
        assert_eq!(points("bands=off", cpu, ROUND), [250; 3]);
    }

    #[test]
    fn a_hot_node_loses_the_points_of_its_taint_after_a_minute() {
        assert_eq!(points("bands=off", [0.3, 0.3, 0.9], MINUTE), [250; 3]);
        assert_eq!(points("bands=off", [0.3, 0.3, 0.9], 2 * MINUTE), [250, 250, 100]);
    }
}
