//! Finding a GPU of its own for each of several shares.
//!
//! The shares of a request are sorted, the largest first. So a greedy choice finds GPUs for all shares whenever some
//! choice does.

use crate::gpu::{FreeGpu, GpuShare};

/// For each share the first GPU that fits it and is not taken yet. Where all that fit it are taken, an earlier share
/// gives way if it fits another GPU: a GPU that fits the largest share may be too large for the compute or the
/// exclusive GPU of a smaller one.
pub(super) fn assign<'a>(
    gpus: &[&'a FreeGpu],
    shares: &[GpuShare],
    fits: impl Fn(&FreeGpu, GpuShare) -> bool,
) -> Option<Vec<&'a FreeGpu>> {
    let mut taken: Vec<Option<usize>> = vec![None; gpus.len()];
    for share in 0..shares.len() {
        let mut tried = vec![false; gpus.len()];
        if !put(share, &mut taken, &mut tried, &|share, gpu| fits(gpus[gpu], shares[share])) {
            return None;
        }
    }
    (0..shares.len())
        .map(|share| taken.iter().position(|by| *by == Some(share)).map(|at| gpus[at]))
        .collect()
}

/// Puts a share on a GPU, and the share that was there on another one. `taken`: the share on each GPU. `tried`: GPUs
/// that cannot be freed.
fn put(
    share: usize,
    taken: &mut [Option<usize>],
    tried: &mut [bool],
    fits: &impl Fn(usize, usize) -> bool,
) -> bool {
    let free = (0..taken.len()).find(|gpu| taken[*gpu].is_none() && fits(share, *gpu));
    if let Some(gpu) = free {
        taken[gpu] = Some(share);
        return true;
    }
    for gpu in 0..taken.len() {
        let Some(other) = taken[gpu] else {
            continue;
        };
        if tried[gpu] || !fits(share, gpu) {
            continue;
        }
        tried[gpu] = true;
        if put(other, taken, tried, fits) {
            taken[gpu] = Some(share);
            return true;
        }
    }
    false
}
