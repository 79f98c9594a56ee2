//! Owns how a schedule is drawn: rounds of batches of pods, with deletions, forgeries and kills between them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::random::Random;
use super::{Forgery, GPU_UNITS, GPUS, NODES, Plan, Priority, Schedule, Step, Victim};

/// Pods of a round.
const ROUND: usize = 40;
/// Pods that are created at once.
const BATCH: usize = 8;
/// The most units that the pods of a schedule are charged at a time. The rest of the GPUs' units is for what does not
/// divide, so that most pods find room.
const FILL: u64 = GPUS as u64 * GPU_UNITS * 7 / 8;
/// The longest pause between two batches, in milliseconds.
const PAUSE_MS: u64 = 1_200;
/// One of so many pods ends by SIGKILL alone.
const STUBBORN: usize = 6;
/// Sizes of containers, the frequent ones more than once.
const SIZES: [u64; 12] = [1, 1, 2, 2, 2, 3, 3, 4, 5, 6, 8, 11];

impl Schedule {
    /// The schedule of this seed with this number of pods.
    pub fn new(seed: u64, pods: usize) -> Self {
        let mut draw = Draw {
            random: Random::new(seed),
            living: BTreeMap::new(),
            forged: BTreeSet::new(),
            victims: Vec::new(),
            created: 0,
            steps: Vec::new(),
        };
        while draw.created < pods {
            draw.round(pods);
        }
        Self { steps: draw.steps }
    }
}

struct Draw {
    random: Random,
    /// The pods that exist, with the units that they are charged, if nothing evicts or refuses them.
    living: BTreeMap<usize, u64>,
    /// Those of them whose claim is forged.
    forged: BTreeSet<usize>,
    /// Who is killed before any is killed again.
    victims: Vec<Victim>,
    created: usize,
    steps: Vec<Step>,
}

impl Draw {
    fn round(&mut self, pods: usize) {
        let end = pods.min(self.created + ROUND);
        while self.created < end {
            let size = BATCH.min(end - self.created);
            let batch: Vec<Plan> = (0..size).map(|_| self.plan()).collect();
            self.make_room(batch.iter().map(Plan::charge).sum());
            self.living.extend(batch.iter().map(|plan| (plan.number, plan.charge())));
            let forged = batch.iter().filter(|plan| plan.forgery.is_some());
            self.forged.extend(forged.map(|plan| plan.number));
            self.steps.push(Step::Create(batch));
            self.disturb();
        }
        self.kill();
        self.steps.push(Step::Settle);
        self.living.retain(|number, _| !self.forged.contains(number));
    }

    fn plan(&mut self) -> Plan {
        let number = self.created;
        self.created += 1;
        let random = &mut self.random;
        let mut containers = vec![SIZES[random.place(SIZES.len())]];
        let mut gpus = 1;
        let mut exclusive = false;
        match random.below(100) {
            0..=4 => containers = vec![0],
            5..=29 => containers = vec![1 + random.below(5), random.below(5)],
            30..=41 => {
                gpus = 2 + random.below(2);
                containers = vec![gpus * (1 + random.below(4))];
            }
            // An exclusive GPU costs all its units.
            42..=44 => (containers, exclusive) = (vec![GPU_UNITS], true),
            45 => (containers, gpus, exclusive) = (vec![2 * GPU_UNITS], 2, true),
            46..=47 => containers = vec![GPU_UNITS],
            _ => {}
        }
        let priority = match random.below(10) {
            0 => Priority::High,
            1..=2 => Priority::Middle,
            _ => Priority::Default,
        };
        let asks = containers.iter().sum::<u64>() > 0;
        let forged = asks && gpus == 1 && !exclusive && random.percent(10);
        let forgery = forged.then(|| self.forgery());
        let stubborn = number.is_multiple_of(STUBBORN);
        Plan { number, containers, gpus, exclusive, priority, stubborn, forgery }
    }

    fn forgery(&mut self) -> Forgery {
        let gpu = self.random.place(GPUS);
        match self.random.below(5) {
            0 => Forgery::Nonsense,
            1 => Forgery::Unclaimed(gpu),
            2 => Forgery::Placed(gpu),
            _ => Forgery::Claim(gpu),
        }
    }

    /// Deletes pods until so many units are free, and a few more.
    fn make_room(&mut self, units: u64) {
        let charged: u64 = self.living.values().sum();
        let mut excess = (charged + units).saturating_sub(FILL);
        let mut deleted = Vec::new();
        while excess > 0 || (self.random.percent(40) && !self.living.is_empty()) {
            let numbers: Vec<usize> = self.living.keys().copied().collect();
            let Some(number) = self.random.one_of(&numbers) else { break };
            excess = excess.saturating_sub(self.living.remove(&number).unwrap_or(0));
            deleted.push(number);
        }
        let (forced, orderly): (Vec<usize>, Vec<usize>) =
            deleted.into_iter().partition(|_| self.random.percent(35));
        for (pods, forced) in [(forced, true), (orderly, false)] {
            if !pods.is_empty() {
                self.steps.push(Step::Delete { pods, forced });
            }
        }
    }

    /// A pause, now and then an edited claim, and kills.
    fn disturb(&mut self) {
        self.pause();
        if self.random.percent(25) {
            let numbers: Vec<usize> = self.living.keys().copied().collect();
            if let Some(pod) = self.random.one_of(&numbers) {
                let gpu = self.random.place(GPUS);
                self.forged.insert(pod);
                self.steps.push(Step::Edit { pod, gpu });
            }
        }
        while self.random.percent(35) {
            self.kill();
        }
    }

    fn kill(&mut self) {
        let victim = self.victim();
        self.steps.push(Step::Kill(victim));
        self.pause();
    }

    fn pause(&mut self) {
        self.steps.push(Step::Pause(Duration::from_millis(self.random.below(PAUSE_MS))));
    }

    fn victim(&mut self) -> Victim {
        if self.victims.is_empty() {
            let replica = self.random.place(12);
            let of_a_node = (0..NODES).flat_map(|node| {
                [
                    Victim::Plugin(node),
                    Victim::Kubelet(node),
                    Victim::Containerd(node),
                    Victim::Exporter(node),
                ]
            });
            let others = [
                Victim::Extender(replica),
                Victim::Extender(replica + 1),
                Victim::Annotator(replica),
                Victim::Scheduler,
                Victim::ApiServer,
            ];
            self.victims = self.random.shuffled(of_a_node.chain(others).collect());
        }
        self.victims.pop().unwrap_or(Victim::Extender(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn created(schedule: &Schedule) -> Vec<&Plan> {
        let batches = schedule.steps.iter().filter_map(|step| match step {
            Step::Create(batch) => Some(batch),
            _ => None,
        });
        batches.flatten().collect()
    }

    #[test]
    fn a_schedule_is_a_function_of_seed_and_pods() {
        assert_eq!(Schedule::new(3, 300), Schedule::new(3, 300));
        assert_ne!(Schedule::new(3, 300), Schedule::new(4, 300));
        assert_eq!(created(&Schedule::new(5, 2_000)).len(), 2_000);
    }

    #[test]
    fn a_schedule_of_300_pods_kills_every_program_and_has_every_kind_of_pod() {
        for seed in 0..100 {
            let schedule = Schedule::new(seed, 300);
            let killed: BTreeSet<(&str, Option<usize>)> = schedule
                .steps
                .iter()
                .filter_map(|step| match step {
                    Step::Kill(victim) => Some((victim.program(), victim.node())),
                    _ => None,
                })
                .collect();
            assert_eq!(killed.len(), 4 + 4 * NODES, "seed {seed}: {killed:?}");
            let pods = created(&schedule);
            let kinds: [fn(&Plan) -> bool; 7] = [
                |plan| plan.exclusive,
                |plan| plan.gpus > 1,
                |plan| plan.stubborn && plan.charge() > 0,
                |plan| plan.forgery.is_some(),
                |plan| plan.containers.len() > 1,
                |plan| plan.priority == Priority::High,
                |plan| plan.charge() == 0,
            ];
            for (number, is_of_kind) in kinds.into_iter().enumerate() {
                assert!(pods.iter().any(|plan| is_of_kind(plan)), "seed {seed}: kind {number}");
            }
            assert_eq!(schedule.steps.last(), Some(&Step::Settle));
        }
    }

    #[test]
    fn units_divide_among_gpus_and_fit_on_them() {
        for plan in created(&Schedule::new(11, 2_000)) {
            assert!(plan.containers.iter().all(|units| units % plan.gpus == 0), "{plan:?}");
            assert!(plan.charge_of_each_gpu() <= GPU_UNITS, "{plan:?}");
            assert!(plan.forgery.is_none() || plan.gpus == 1 && !plan.exclusive, "{plan:?}");
        }
    }

    #[test]
    fn only_living_pods_are_deleted_or_edited_and_the_living_never_ask_for_more_than_there_is() {
        let mut living: BTreeMap<usize, u64> = BTreeMap::new();
        let mut forged = BTreeSet::new();
        for step in Schedule::new(2, 2_000).steps {
            match step {
                Step::Create(batch) => {
                    let false_ones = batch.iter().filter(|plan| plan.forgery.is_some());
                    forged.extend(false_ones.map(|plan| plan.number));
                    living.extend(batch.iter().map(|plan| (plan.number, plan.charge())));
                    let charged: u64 = living.values().sum();
                    assert!(charged <= GPUS as u64 * GPU_UNITS, "{charged}");
                }
                Step::Delete { pods, .. } => {
                    assert!(pods.iter().all(|pod| living.remove(pod).is_some()), "{pods:?}");
                }
                Step::Edit { pod, .. } => {
                    assert!(living.contains_key(&pod));
                    forged.insert(pod);
                }
                Step::Settle => living.retain(|number, _| !forged.contains(number)),
                Step::Kill(_) | Step::Pause(_) => {}
            }
        }
    }
}
