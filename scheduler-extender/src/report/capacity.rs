//! How many more pods of some sizes the GPUs of nodes take.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use api::capacity::{Capacity, Question, Room};
use api::state::Replica;
use jiff::Timestamp;
use placement::gpu::{self, GpuRequest};
use placement::units::{Cores, GpuModel, Units};

use crate::view::{Snapshot, View};

/// Sizes of one request at most: powers of two up to any GPU's units.
const MAX_SIZES: usize = 32;

/// Nodes of one turn. One takes a millisecond at worst.
const TURN: usize = 16;

/// What fits of each size. Others have a turn every few nodes, where a caller's time limit ends it too.
///
/// # Errors
///
/// What is wrong in the request.
pub async fn capacity(
    view: &View,
    replica: &Replica,
    asked: &Question,
    now: Timestamp,
) -> Result<Vec<Capacity>, String> {
    let Question { sizes, count, cores, node_names } = asked;
    // Pods with several GPUs are placed one by one: 5,000 nodes take some seconds.
    let most = if *count == 1 { MAX_SIZES } else { 1 };
    if sizes.len() > most || !(1..=64).contains(count) || *cores > Cores::ALL.0 {
        let bounds = "one for a count from 2 to 64, and cores from 0 to 100";
        return Err(format!("expected {MAX_SIZES} sizes at most, {bounds}"));
    }
    let names: Option<HashSet<&str>> =
        node_names.as_ref().map(|all| all.iter().map(String::as_str).collect());
    let snapshot = view.read();
    let mut answers = Vec::with_capacity(sizes.len());
    for size in sizes {
        let request = GpuRequest::of_shape(*count, Units(*size), Cores(*cores))
            .ok_or("sizes: expected units from 1 on, that can be counted")?;
        let mut answer = Capacity {
            time: now,
            replica: replica.clone(),
            size: *size,
            count: *count,
            cores: *cores,
            models: Vec::new(),
            total: Room { model: "all".to_owned(), ..Room::default() },
            left_out: 0,
        };
        add_nodes(&mut answer, &snapshot, &request, names.as_ref()).await;
        answers.push(answer);
    }
    Ok(answers)
}

async fn add_nodes(
    answer: &mut Capacity,
    snapshot: &Snapshot,
    request: &GpuRequest,
    names: Option<&HashSet<&str>>,
) {
    let mut rooms: BTreeMap<&GpuModel, Room> = BTreeMap::new();
    for (at, (name, gpus)) in snapshot.nodes_with_gpus().enumerate() {
        if at % TURN == TURN - 1 {
            tokio::task::yield_now().await;
        }
        if names.is_some_and(|names| !names.contains(name.as_str())) {
            continue;
        }
        answer.left_out += gpus.accounts().len() as u64;
        let back_off = snapshot.back_offs.get(name);
        if back_off.is_some_and(|back_off| back_off.is_on(answer.time)) {
            continue;
        }
        let total = gpus.capacity(request, None);
        answer.left_out -= total.gpus;
        add(&mut answer.total, total);
        let models: BTreeSet<&GpuModel> =
            gpus.accounts().iter().map(|account| &account.gpu.model).collect();
        for model in &models {
            let alone = models.len() == 1;
            let fits = if alone { total } else { gpus.capacity(request, Some(model)) };
            if fits.gpus > 0 {
                add(rooms.entry(model).or_default(), fits);
            }
        }
    }
    for (model, room) in rooms {
        answer.models.push(Room { model: model.to_string(), ..room });
    }
}

/// Adds what fits on another node.
fn add(sum: &mut Room, node: gpu::Capacity) {
    sum.gpus += node.gpus;
    sum.free_units += node.free;
    sum.pods += node.pods;
    sum.largest = sum.largest.max(node.largest.0);
}
