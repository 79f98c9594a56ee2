//! The list of devices that the kubelet gets, and the health of each.
//!
//! kube-scheduler compares what pods request with the number of Healthy devices. So the ids of a GPU that takes no
//! pods are Healthy for as long as a pod holds them: otherwise this pod would use up the room of another GPU
//! (kubernetes/kubernetes#92592). No pod gets them, since the kubelet gives out free ids alone.
//!
//! While units are withheld, no id is Healthy, as when the plugin is gone: then kube-scheduler sees that no pod's
//! eviction would make room. Were the held ids Healthy, it would evict one pod after another for a pod of higher
//! priority, since each one's ids would be withheld when it ends.
//!
//! Invariants: unless all are withheld, an id that a pod holds is listed as Healthy, whichever GPU it is on; a free id
//! is Healthy only if its GPU takes pods; an id that was listed stays listed, since the kubelet crashes if it
//! disappears while its Allocate is in flight.

use std::collections::BTreeMap;

use kubelet_api::v1beta1::Device;

use crate::admission::breaker::Offer;
use crate::gpus::Gpus;
use crate::gpus::ids::{DeviceId, Ids};

/// The list of one stream.
#[derive(Debug, Default)]
pub(crate) struct DeviceList {
    /// Whether each listed id is Healthy.
    listed: BTreeMap<DeviceId, bool>,
}

impl DeviceList {
    /// Updates the list for these GPUs and for the ids that pods `held`. `takes_pods` is false if no GPU of the node
    /// takes new pods. Returns whether the list has changed.
    pub(crate) fn update(
        &mut self,
        gpus: &Gpus,
        held: &Ids,
        takes_pods: bool,
        offer: Offer,
    ) -> bool {
        let mut next: BTreeMap<DeviceId, bool> =
            self.listed.keys().map(|id| (id.clone(), false)).collect();
        for gpu in gpus.iter() {
            next.extend(gpu.ids().map(|id| (id, false)));
            if takes_pods && gpu.is_healthy() {
                for id in gpu.ids().filter(|id| !held.contains(id)).take(free_ids(offer)) {
                    next.insert(id, true);
                }
            }
        }
        // Some may be of a GPU that is gone, or that has fewer units now.
        next.extend(held.iter().map(|id| (id.clone(), offer != Offer::Nothing)));
        let changed = next != self.listed;
        self.listed = next;
        changed
    }

    /// The devices without a topology. With one, the kubelet's topology manager would choose a NUMA node before it
    /// calls the plugin, and could exclude the claimed GPU. The extender reads the GPU's NUMA node from the node's
    /// annotation.
    pub(crate) fn devices(&self) -> Vec<Device> {
        let mut devices = Vec::with_capacity(self.listed.len());
        for (id, healthy) in &self.listed {
            let health = if *healthy { "Healthy" } else { "Unhealthy" };
            devices.push(Device { id: id.to_string(), health: health.to_owned(), topology: None });
        }
        devices
    }
}

/// How many free ids of a GPU are Healthy at most.
fn free_ids(offer: Offer) -> usize {
    match offer {
        Offer::All => usize::MAX,
        Offer::Few(units) => units.0 as usize,
        Offer::Nothing => 0,
    }
}

#[cfg(test)]
mod tests {
    use placement::units::Units;
    use proptest::prelude::*;

    use super::*;
    use crate::fixtures::{A, B, gpus, ids, with_unhealthy};
    use crate::gpus::Unhealthy;

    fn healthy(list: &DeviceList) -> Vec<String> {
        let devices = list.devices().into_iter();
        devices.filter(|device| device.health == "Healthy").map(|device| device.id).collect()
    }

    #[test]
    fn held_ids_of_an_unhealthy_gpu_are_healthy_until_their_holder_ends() {
        let mut list = DeviceList::default();
        let gpus = gpus(&[(A, 2), (B, 1)]);
        let ill = with_unhealthy(&gpus, A, Unhealthy::Lost);
        assert!(list.update(&ill, &ids(["aaaaaaaa-1"]), true, Offer::All));
        assert_eq!(healthy(&list), ["aaaaaaaa-1", "bbbbbbbb-0"]);
        assert!(!list.update(&ill, &ids(["aaaaaaaa-1"]), true, Offer::All), "nothing to send");
        assert!(list.update(&ill, &Ids::new(), true, Offer::All));
        assert_eq!(healthy(&list), ["bbbbbbbb-0"]);
        assert_eq!(list.devices().len(), 3);
    }

    #[test]
    fn a_held_id_of_no_gpu_is_listed_and_stays_listed_once_it_is_free() {
        let mut list = DeviceList::default();
        let gpus = gpus(&[(A, 1)]);
        let held = ids(["cccccccc-0", "aaaaaaaa-7"]);
        list.update(&gpus, &held, true, Offer::All);
        assert_eq!(healthy(&list), ["aaaaaaaa-0", "aaaaaaaa-7", "cccccccc-0"]);
        list.update(&gpus, &Ids::new(), true, Offer::All);
        assert_eq!(healthy(&list), ["aaaaaaaa-0"]);
        assert_eq!(list.devices().len(), 3);
    }

    #[test]
    fn a_node_that_takes_no_pods_offers_no_free_id() {
        let mut list = DeviceList::default();
        let gpus = gpus(&[(A, 2)]);
        list.update(&gpus, &ids(["aaaaaaaa-0"]), false, Offer::All);
        assert_eq!(healthy(&list), ["aaaaaaaa-0"]);
    }

    #[test]
    fn no_id_is_healthy_while_all_are_withheld_and_of_each_gpu_a_few_free_ones_after() {
        let mut list = DeviceList::default();
        let gpus = gpus(&[(A, 3), (B, 3)]);
        let held = ids(["aaaaaaaa-0", "cccccccc-0"]);
        assert!(list.update(&gpus, &held, true, Offer::Nothing));
        assert_eq!(healthy(&list), [""; 0]);
        assert_eq!(list.devices().len(), 7, "all are listed");
        assert!(list.update(&gpus, &held, true, Offer::Few(Units(1))));
        assert_eq!(healthy(&list), ["aaaaaaaa-0", "aaaaaaaa-1", "bbbbbbbb-0", "cccccccc-0"]);
        list.update(&gpus, &held, false, Offer::Few(Units(1)));
        assert_eq!(healthy(&list), ["aaaaaaaa-0", "cccccccc-0"]);
    }

    /// A step in the life of a node with up to four GPU slots.
    #[derive(Debug, Clone)]
    enum NodeStep {
        /// The GPU in a slot works or does not.
        Health(usize, bool),
        /// Another GPU is in the slot.
        Replace(usize),
        /// The GPU in the slot has this number of units, as after another `--reserve-percent`.
        Units(usize, u32),
        /// A pod takes units of the GPU in the slot, if that takes pods and has them.
        Run(usize, u32),
        /// The pod that began first ends.
        End,
        /// The plugin restarts: the kubelet opens a new stream.
        Restart,
    }

    fn step() -> impl Strategy<Value = NodeStep> {
        let slot = 0_usize..4;
        prop_oneof![
            (slot.clone(), any::<bool>()).prop_map(|(slot, works)| NodeStep::Health(slot, works)),
            slot.clone().prop_map(NodeStep::Replace),
            (slot.clone(), 1_u32..6).prop_map(|(slot, units)| NodeStep::Units(slot, units)),
            (slot, 1_u32..4).prop_map(|(slot, units)| NodeStep::Run(slot, units)),
            Just(NodeStep::End),
            Just(NodeStep::Restart),
        ]
    }

    #[derive(Debug, Clone, Copy)]
    struct Slot {
        gpu: u32,
        units: u32,
        works: bool,
    }

    fn uuid(gpu: u32) -> String {
        format!("GPU-{gpu:08x}-0000")
    }

    fn id(gpu: u32, slot: u32) -> DeviceId {
        DeviceId::new(&format!("{gpu:08x}"), slot)
    }

    proptest! {
        /// Allocatable less requested is never below the room of the GPUs that take pods, and no free id of another
        /// GPU is Healthy.
        #[test]
        fn the_room_of_healthy_gpus_stays_schedulable_in_every_history(
            steps in proptest::collection::vec(step(), 1..40),
        ) {
            let mut slots = [1, 2, 3, 4].map(|gpu| Slot { gpu, units: 4, works: true });
            let mut pods: Vec<Ids> = Vec::new();
            let mut list = DeviceList::default();
            let mut next = 5;
            for step in steps {
                match step {
                    NodeStep::Health(slot, works) => slots[slot].works = works,
                    NodeStep::Replace(slot) => {
                        slots[slot].gpu = next;
                        next += 1;
                    }
                    NodeStep::Units(slot, units) => slots[slot].units = units,
                    NodeStep::Run(slot, units) => {
                        let Slot { gpu, units: all, works } = slots[slot];
                        let ids = (0..all).map(|at| id(gpu, at));
                        let free = ids.filter(|id| !pods.iter().any(|held| held.contains(id)));
                        let chosen: Ids = free.take(units as usize).collect();
                        if works && chosen.len() == units as usize {
                            pods.push(chosen);
                        }
                    }
                    NodeStep::End if pods.is_empty() => {}
                    NodeStep::End => drop(pods.remove(0)),
                    NodeStep::Restart => list = DeviceList::default(),
                }
                let names: Vec<String> = slots.iter().map(|slot| uuid(slot.gpu)).collect();
                let of: Vec<(&str, u32)> =
                    names.iter().map(String::as_str).zip(slots.iter().map(|slot| slot.units)).collect();
                let mut gpus = gpus(&of);
                for slot in slots.iter().filter(|slot| !slot.works) {
                    gpus = with_unhealthy(&gpus, &uuid(slot.gpu), Unhealthy::Lost);
                }
                let held: Ids = pods.iter().flatten().cloned().collect();
                list.update(&gpus, &held, true, Offer::All);
                let offered = healthy(&list);
                let working = slots.iter().filter(|slot| slot.works);
                let room: usize = working
                    .map(|slot| (0..slot.units).filter(|at| !held.contains(&id(slot.gpu, *at))).count())
                    .sum();
                prop_assert!(offered.len() >= held.len() + room, "{offered:?} {held:?}");
                for offered in &offered {
                    let offered: DeviceId = offered.parse().unwrap();
                    let gpu = gpus.offering(&offered).filter(|gpu| gpu.is_healthy());
                    prop_assert!(held.contains(&offered) || gpu.is_some(), "{offered}");
                }
                prop_assert!(held.iter().all(|id| offered.contains(&id.to_string())));
            }
        }
    }
}
