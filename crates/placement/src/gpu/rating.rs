//! How nodes compare for a pod that requests cards.

use std::cmp::Ordering;

use super::fragmentation::Cost;
use crate::load::Score;

/// How good a node is. All nodes are rated alike for one pod, but for one where cards are set aside for it already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rating {
    /// By how far its cards are filled.
    Score(Score),
    /// By what the placement costs.
    Cost(Cost),
}

/// The scores of the nodes that are cheapest, the best first; all others have 0. Half of a score is what the load can make up for where
/// both count alike ([`Score::mean`]): so load decides between two of these nodes where one is far cooler, and kube-scheduler's own
/// plugins, of which none that pods do not request weighs more than 200, decide nothing.
const BY_RANK: [u8; 7] = [100, 50, 25, 12, 6, 3, 1];

/// The score of each node, 0 for those without a rating. Costs become ranks, for close ones would have the same score, and nodes of one
/// score are chosen from by chance: filling equal nodes one after the other is most of what the measure gains. `order` decides between
/// nodes of one cost, and is the same each time.
pub fn scores(ratings: &[Option<Rating>], order: impl Fn(usize, usize) -> Ordering) -> Vec<Score> {
    let mut best: Vec<(Cost, usize)> = Vec::with_capacity(BY_RANK.len() + 1);
    let mut scores = vec![Score::ZERO; ratings.len()];
    for (at, rating) in ratings.iter().enumerate() {
        match rating {
            Some(Rating::Score(score)) => scores[at] = *score,
            Some(Rating::Cost(cost)) => {
                let behind = |known: &(Cost, usize)| {
                    known.0.cmp(cost).then_with(|| order(known.1, at)) != Ordering::Greater
                };
                // Most nodes are behind the last one.
                if best.len() == BY_RANK.len() && best.last().is_some_and(behind) {
                    continue;
                }
                let rank = best.iter().take_while(|known| behind(known)).count();
                if rank < BY_RANK.len() {
                    best.insert(rank, (*cost, at));
                    best.truncate(BY_RANK.len());
                }
            }
            None => {}
        }
    }
    for ((_, at), points) in best.iter().zip(BY_RANK) {
        scores[*at] = Score::truncated(f64::from(points));
    }
    scores
}

/// The score of a node by its load for a pod without cards that costs the node's cards so much: as many cards become useless, up to one, as
/// parts of the score are lost.
pub fn score_beside_cards(by_load: Score, cost: Cost) -> Score {
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
    fn of_equal_nodes_the_first_is_best_whatever_order_they_are_asked_in() {
        let names = ["c", "a", "d", "b", "e", "h", "g", "f"];
        let ratings = [cost(1); 8];
        let points = scores(&ratings, |a, b| names[a].cmp(names[b]));
        let points: Vec<u8> = points.into_iter().map(Score::get).collect();
        assert_eq!(points, [25, 100, 12, 50, 6, 0, 1, 3]);
    }

    #[test]
    fn a_pod_without_cards_keeps_off_nodes_whose_cards_need_the_cpu() {
        let score = |cost| score_beside_cards(Score::truncated(80.0), Cost(cost)).get();
        assert_eq!([-5, 0, 250_000, 1_000_000, i64::MAX].map(score), [80, 80, 60, 0, 0]);
    }

    #[test]
    fn what_is_rated_by_score_keeps_it() {
        let score = |points| Some(Rating::Score(Score::truncated(points)));
        assert_eq!(points(&[score(40.0), None, score(41.0)]), [40, 0, 41]);
        assert!(points(&[]).is_empty());
    }
}
