//! How nodes compare for a pod that requests GPUs.

use std::cmp::Ordering;

use super::fragmentation::Cost;
use crate::load::Score;

/// How good a node is for a pod. For one pod all ratings are of the same kind, except on a node where the pod already
/// has reserved GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rating {
    /// A score by how full its GPUs are.
    Score(Score),
    /// The cost of the placement.
    Cost(Cost),
}

/// The scores of the cheapest nodes, the cheapest first; all other nodes get 0. A node's score is the mean of this and
/// of its load score ([`Score::mean`]). So load decides between two of these nodes where one is far less loaded.
/// kube-scheduler's own plugins do not decide: none that pods do not request weighs more than 200.
const SCORES_BY_RANK: [u8; 7] = [100, 50, 25, 12, 6, 3, 1];

/// The score of each node, 0 for those without a rating. A cost is scored by its rank, since close costs would get the
/// same score, and kube-scheduler chooses at random among nodes of one score. Filling equal nodes one after the other
/// is most of the gain of the measure. `order` decides between nodes of equal cost, and has to be the same each time.
pub fn scores(ratings: &[Option<Rating>], order: impl Fn(usize, usize) -> Ordering) -> Vec<Score> {
    let mut best: Vec<(Cost, usize)> = Vec::with_capacity(SCORES_BY_RANK.len() + 1);
    let mut scores = vec![Score::ZERO; ratings.len()];
    for (at, rating) in ratings.iter().enumerate() {
        match rating {
            Some(Rating::Score(score)) => scores[at] = *score,
            Some(Rating::Cost(cost)) => {
                // From the end: most nodes rank below the last of `best`.
                let last_before = best.iter().rposition(|(known, position)| {
                    known.cmp(cost).then_with(|| order(*position, at)) != Ordering::Greater
                });
                let rank = last_before.map_or(0, |last| last + 1);
                if rank < SCORES_BY_RANK.len() {
                    best.insert(rank, (*cost, at));
                    best.truncate(SCORES_BY_RANK.len());
                }
            }
            None => {}
        }
    }
    for ((_, at), points) in best.iter().zip(SCORES_BY_RANK) {
        scores[*at] = Score::truncated(f64::from(points));
    }
    scores
}

/// The score of a node for a pod without GPUs: the load score, less the part of a GPU that the pod's CPU costs the
/// node's GPUs, beyond what it costs those of the cheapest node. One GPU or more leaves 0.
pub fn score_less_gpu_cost(by_load: Score, cost: Cost) -> Score {
    let left = 1.0 - (cost.0 as f64 / 1e6).clamp(0.0, 1.0);
    Score::truncated(f64::from(by_load.get()) * left)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(ratings: &[Option<Rating>]) -> Vec<u8> {
        scores(ratings, |a, b| a.cmp(&b)).into_iter().map(Score::get).collect()
    }

    fn cost(cost: i64) -> Option<Rating> {
        Some(Rating::Cost(Cost(cost)))
    }

    #[test]
    fn costs_that_are_close_have_scores_that_are_not() {
        let ratings = [cost(7), None, cost(6), cost(-1_000_000), cost(5), cost(9)];
        assert_eq!(points(&ratings), [12, 0, 25, 100, 50, 6]);
    }

    #[test]
    fn of_equal_nodes_the_first_is_best_in_whatever_order_they_come() {
        let names = ["c", "a", "d", "b", "e", "h", "g", "f"];
        let ratings = [cost(1); 8];
        let points = scores(&ratings, |a, b| names[a].cmp(names[b]));
        let points: Vec<u8> = points.into_iter().map(Score::get).collect();
        assert_eq!(points, [25, 100, 12, 50, 6, 0, 1, 3]);
    }

    #[test]
    fn a_pod_without_gpus_keeps_off_nodes_whose_gpus_need_the_cpu() {
        let by_load = Score::truncated(80.0);
        for (cost, score) in [(-5, 80), (0, 80), (250_000, 60), (1_000_000, 0), (i64::MAX, 0)] {
            assert_eq!(score_less_gpu_cost(by_load, Cost(cost)).get(), score, "{cost}");
        }
    }

    #[test]
    fn where_a_pod_costs_much_everywhere_load_decides_among_the_cheapest() {
        let score = |load, cost| {
            let beyond = Cost(cost).beyond(Cost(3_000_000));
            score_less_gpu_cost(Score::truncated(load), beyond).get()
        };
        assert_eq!(score(40.0, 3_000_000), 40);
        assert_eq!(score(80.0, 3_000_000), 80);
        assert_eq!(score(80.0, 3_750_000), 20);
        assert_eq!(score(80.0, 4_000_000), 0);
        // One that is rejected may be cheaper than the cheapest that is not.
        assert_eq!(score(80.0, i64::MIN), 80);
    }

    #[test]
    fn what_is_rated_by_score_keeps_it() {
        let score = |points| Some(Rating::Score(Score::truncated(points)));
        assert_eq!(points(&[score(40.0), None, score(41.0)]), [40, 0, 41]);
        assert!(points(&[]).is_empty());
    }
}
