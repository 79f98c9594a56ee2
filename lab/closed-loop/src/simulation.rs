//! All worlds in lockstep: the use of each pod is computed once a step, and each world adds it up where its pods are.

use anyhow::Context;

use crate::cluster::NODE_CORES;
use crate::policies::Entry;
use crate::time::Step;
use crate::workload::{Ar1, Pod, PodId, Workload};
use crate::world::{Figures, InTree, LEVELS, Shared, World, minutes};

/// The base use of all pods that have arrived and have not ended in every world.
///
/// Pods are kept in slots that are reused, so that a step passes over a few thousand of them and not over all pods of a
/// run. A pod's use depends on the workload and the step alone; slots do not matter to it.
struct Uses {
    app_noise: Ar1,
    pod_noise: Ar1,
    /// By app: noise, and its factor at this step.
    apps: Vec<(f32, f32)>,
    slots: Vec<Slot>,
    /// By slot, in cores.
    uses: Vec<f32>,
    pod_in_slot: Vec<u32>,
    /// By pod.
    slot_of: Vec<u32>,
    free: Vec<u32>,
}

struct Slot {
    app: usize,
    /// Request times ratios of app and pod, in cores.
    base: f32,
    noise: f32,
    key: u64,
    /// Worlds in which the pod has not ended; 0 in a free slot.
    worlds: usize,
}

impl Uses {
    fn new(workload: &Workload) -> Self {
        let app_noise = Ar1::new(workload.traits.app_noise, 3600.0);
        Self {
            app_noise,
            pod_noise: Ar1::new(workload.traits.pod_noise, 300.0),
            apps: workload.apps.iter().map(|app| (app_noise.first(app.noise), 0.0)).collect(),
            slots: Vec::new(),
            uses: Vec::new(),
            pod_in_slot: Vec::new(),
            slot_of: vec![u32::MAX; workload.pods.len()],
            free: Vec::new(),
        }
    }

    fn arrive(&mut self, workload: &Workload, id: PodId, worlds: usize) {
        let pod: &Pod = &workload.pods[id];
        let app = &workload.apps[pod.app];
        let slot = Slot {
            app: pod.app,
            base: (app.cores() * app.ratio) as f32 * pod.factor,
            noise: self.pod_noise.first(pod.noise),
            key: pod.noise,
            worlds,
        };
        let place = if let Some(place) = self.free.pop() {
            self.slots[place as usize] = slot;
            place
        } else {
            self.slots.push(slot);
            self.uses.push(0.0);
            self.pod_in_slot.push(u32::MAX);
            (self.slots.len() - 1) as u32
        };
        self.pod_in_slot[place as usize] = id as u32;
        self.slot_of[id] = place;
    }

    /// Moves all noise on by a step. The mean of the exponential of noise is 1: half of its variance is taken off.
    fn step(&mut self, workload: &Workload, now: Step) {
        if let Some(replay) = &workload.replay {
            for (slot, used) in self.slots.iter().zip(&mut self.uses) {
                if slot.worlds > 0 {
                    *used = slot.base * replay.at(slot.app, slot.key, now);
                }
            }
            return;
        }
        let of_app = shift(workload.traits.app_noise);
        let of_pod = shift(workload.traits.pod_noise);
        for ((noise, factor), app) in self.apps.iter_mut().zip(&workload.apps) {
            *noise = self.app_noise.next(*noise, app.noise, now);
            *factor = workload.rhythm(app, now) as f32 * (*noise - of_app).exp();
        }
        for (slot, used) in self.slots.iter_mut().zip(&mut self.uses) {
            if slot.worlds > 0 {
                slot.noise = self.pod_noise.next(slot.noise, slot.key, now);
                *used = slot.base * self.apps[slot.app].1 * (slot.noise - of_pod).exp();
            }
        }
    }

    /// A pod ended in one more world.
    fn ended(&mut self, pod: PodId) {
        let place = self.slot_of[pod];
        let slot = &mut self.slots[place as usize];
        slot.worlds -= 1;
        if slot.worlds == 0 {
            self.uses[place as usize] = 0.0;
            self.pod_in_slot[place as usize] = u32::MAX;
            self.slot_of[pod] = u32::MAX;
            self.free.push(place);
        }
    }
}

fn shift(sigma: f64) -> f32 {
    (sigma * sigma / 2.0) as f32
}

/// A run of several policies over one workload.
pub struct Simulation<'w> {
    workload: &'w Workload,
    worlds: Vec<World>,
    uses: Uses,
    now: Step,
    arrived: PodId,
    /// Steps in which a pod alone is over each of the levels, summed over the pods.
    alone: [u64; 3],
}

impl<'w> Simulation<'w> {
    /// A world for each policy.
    ///
    /// # Errors
    ///
    /// If a policy cannot be made.
    pub fn new(
        workload: &'w Workload,
        in_tree: InTree,
        policies: &[Entry],
    ) -> anyhow::Result<Self> {
        let worlds: anyhow::Result<Vec<World>> = policies
            .iter()
            .map(|entry| {
                let policy = entry.policy().with_context(|| format!("policy {entry}"))?;
                Ok(World::new(workload, in_tree, policy, entry.weight))
            })
            .collect();
        Ok(Self {
            workload,
            worlds: worlds?,
            uses: Uses::new(workload),
            now: 0,
            arrived: 0,
            alone: [0; 3],
        })
    }

    /// The worlds, in the order of the policies.
    pub fn worlds(&self) -> &[World] {
        &self.worlds
    }

    /// The next step to be simulated.
    pub fn now(&self) -> Step {
        self.now
    }

    /// Simulates one step. Returns whether there are more.
    pub fn step(&mut self) -> bool {
        let first = self.arrived;
        let now = self.now;
        let rest = self.workload.pods[first..].iter();
        self.arrived += rest.take_while(|pod| pod.arrival <= now).count();
        for pod in first..self.arrived {
            self.uses.arrive(self.workload, pod, self.worlds.len());
        }
        self.uses.step(self.workload, self.now);
        self.count_alone();
        let shared = Shared {
            workload: self.workload,
            now: self.now,
            uses: &self.uses.uses,
            pod_in_slot: &self.uses.pod_in_slot,
            slot_of: &self.uses.slot_of,
            arriving: (first, self.arrived),
        };
        self.worlds.iter_mut().for_each(|world| world.step(&shared));
        for world in &mut self.worlds {
            for pod in world.take_finished() {
                self.uses.ended(pod as PodId);
            }
        }
        self.now += 1;
        self.now < self.workload.scale.steps
    }

    fn count_alone(&mut self) {
        if self.now < self.workload.scale.counted_from {
            return;
        }
        for used in &self.uses.uses {
            for (steps, level) in self.alone.iter_mut().zip(LEVELS) {
                *steps += u64::from(f64::from(*used) > level * NODE_CORES);
            }
        }
    }

    /// Simulates to the end. The figures are in the order of the policies; with them come the minutes, summed over
    /// pods, in which one pod alone asks for more than 65%, 80% and 100% of a node: no placement avoids those.
    pub fn run(mut self) -> (Vec<Figures>, [f64; 3]) {
        while self.step() {}
        let now = self.now;
        let alone = self.alone.map(|steps| minutes(steps as f64));
        (self.worlds.into_iter().map(|world| world.finish(now)).collect(), alone)
    }
}
