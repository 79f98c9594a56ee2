//! What is requested of every node: by bound pods, and by pods that are assumed to be bound.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use super::filters::{NodeResources, requests};
use super::pod::has_ended;
use crate::json::{text, uid};
use crate::objects::kind::{NODES, PODS};
use crate::objects::store::Store;

/// Pods that were placed and are not seen bound yet: node and pod, by UID.
#[derive(Debug, Default)]
pub(super) struct Cache(Mutex<HashMap<String, (String, Arc<Value>)>>);

impl Cache {
    pub(super) fn assume(&self, pod: &Arc<Value>, node: &str) {
        self.lock().insert(uid(pod).to_owned(), (node.to_owned(), pod.clone()));
    }

    /// Ends the assumption about a pod.
    pub(super) fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }

    /// Every node with what is requested of it now.
    pub(super) fn nodes(&self, store: &Store) -> Vec<NodeResources> {
        let mut nodes: Vec<NodeResources> =
            store.list(NODES).0.iter().map(NodeResources::new).collect();
        let indices: HashMap<String, usize> =
            nodes.iter().enumerate().map(|(index, node)| (node.name.clone(), index)).collect();
        let mut assumed = self.lock().clone();
        for pod in store.list(PODS).0 {
            let node = text(&pod["spec"]["nodeName"]);
            if !node.is_empty() {
                assumed.remove(uid(&pod));
                if !has_ended(&pod) {
                    add(&mut nodes, &indices, node, &pod);
                }
            }
        }
        for (node, pod) in assumed.values() {
            add(&mut nodes, &indices, node, pod);
        }
        nodes
    }

    // A panic cannot leave a change half done: each is a single insertion or removal.
    fn lock(&self) -> MutexGuard<'_, HashMap<String, (String, Arc<Value>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds what a pod requests to its node, if the node is there.
fn add(nodes: &mut [NodeResources], indices: &HashMap<String, usize>, node: &str, pod: &Value) {
    if let Some(node) = indices.get(node).and_then(|index| nodes.get_mut(*index)) {
        node.add(&requests(pod));
    }
}
