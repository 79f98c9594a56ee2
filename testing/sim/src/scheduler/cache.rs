//! What every node carries: bound pods, and those that are assumed to be.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use super::cycle::text;
use super::fit::{Room, requests, sum};
use crate::kind::{NODES, PODS};
use crate::store::Store;

/// Pods that were placed but are not seen bound yet, by UID, with their nodes.
#[derive(Debug, Default)]
pub(super) struct Cache(Mutex<HashMap<String, (String, Arc<Value>)>>);

impl Cache {
    pub(super) fn assume(&self, pod: &Arc<Value>, node: &str) {
        let uid = text(&pod["metadata"]["uid"]).to_owned();
        self.lock().insert(uid, (node.to_owned(), pod.clone()));
    }

    pub(super) fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }

    /// Every node with what is asked of it now.
    pub(super) fn rooms(&self, store: &Store) -> Vec<Room> {
        let mut rooms: Vec<Room> = store.list(NODES).0.iter().map(Room::new).collect();
        let places: HashMap<String, usize> =
            rooms.iter().enumerate().map(|(place, room)| (room.node.clone(), place)).collect();
        let mut assumed = self.lock().clone();
        let mut charge = |node: &str, pod: &Value| {
            if let Some(room) = places.get(node).and_then(|place| rooms.get_mut(*place)) {
                room.used = sum(&room.used, &requests(pod));
            }
        };
        for pod in store.list(PODS).0 {
            let node = text(&pod["spec"]["nodeName"]);
            if !node.is_empty() {
                assumed.remove(text(&pod["metadata"]["uid"]));
                if !is_over(&pod) {
                    charge(node, &pod);
                }
            }
        }
        assumed.values().for_each(|(node, pod)| charge(node, pod));
        rooms
    }

    // Each change is a single insertion or removal.
    fn lock(&self) -> MutexGuard<'_, HashMap<String, (String, Arc<Value>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn is_over(pod: &Value) -> bool {
    matches!(text(&pod["status"]["phase"]), "Succeeded" | "Failed")
}
