//! What would have to change for a pod to find a node, in words.

use api::decisions::{Asks, Lack, Nearest};

/// What is nearest to accepting a pod that asks this of cards.
pub fn in_words(nearest: &Nearest, asks: Option<&Asks>) -> String {
    let (units, count) = asks.map_or((0, 0), |asks| (asks.units, asks.count));
    match nearest {
        Nearest::Card { node, index, free, lack } => match lack {
            Lack::Units => format!("1 card with {units} free: {node}/{index} has {free}"),
            Lack::Empty => {
                format!("1 card that no pod is on: {node}/{index} is emptiest, with {free} free")
            }
            Lack::Unplaced => format!(
                "once pods without a card have theirs on {node}: {node}/{index} has {free} free"
            ),
            Lack::Other => format!("{node}/{index} is nearest, with {free} free"),
        },
        Nearest::Cards { node, fit, lack } => match lack {
            Lack::Units => format!("{count} cards with {units} free on a node: {node} has {fit}"),
            Lack::Empty => {
                format!("{count} cards that no pod is on, of one node: {node} has {fit}")
            }
            Lack::Unplaced => format!(
                "once pods without a card have theirs on {node}: {fit} cards there have {units} free"
            ),
            Lack::Other => format!("{node} is nearest, where {fit} of {count} cards fit"),
        },
        Nearest::Limit { node, metric, load, max } => {
            // The limit with the policy's digits, without errors of binary fractions; no load of -0.0%.
            let max = (max * 1e8).round() / 1e6;
            let load = (load * 1e3).round() / 10.0 + 0.0;
            format!("{metric} at most {max}%: {node} has {load:.1}%")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lacking_is_told_as_it_is() {
        let asks = Asks { units: 20, count: 2, cores: 0, exclusive: false };
        let said = |nearest: Nearest| in_words(&nearest, Some(&asks));
        let node = || "gpu-1".to_owned();
        let card = |lack| said(Nearest::Card { node: node(), index: 0, free: 17, lack });
        let theirs = "once pods without a card have theirs on gpu-1: ";
        assert_eq!(card(Lack::Units), "1 card with 20 free: gpu-1/0 has 17");
        assert_eq!(
            card(Lack::Empty),
            "1 card that no pod is on: gpu-1/0 is emptiest, with 17 free"
        );
        assert_eq!(card(Lack::Unplaced), format!("{theirs}gpu-1/0 has 17 free"));
        assert_eq!(card(Lack::Other), "gpu-1/0 is nearest, with 17 free");
        let cards = |lack| said(Nearest::Cards { node: node(), fit: 1, lack });
        assert_eq!(cards(Lack::Units), "2 cards with 20 free on a node: gpu-1 has 1");
        assert_eq!(cards(Lack::Empty), "2 cards that no pod is on, of one node: gpu-1 has 1");
        assert_eq!(cards(Lack::Unplaced), format!("{theirs}1 cards there have 20 free"));
        assert_eq!(cards(Lack::Other), "gpu-1 is nearest, where 1 of 2 cards fit");
        let metric = || "cpu_usage_avg_5m".to_owned();
        let limit = |load, max| said(Nearest::Limit { node: node(), metric: metric(), load, max });
        assert_eq!(limit(0.804, 0.57), "cpu_usage_avg_5m at most 57%: gpu-1 has 80.4%");
        assert_eq!(limit(-0.0003, 0.655), "cpu_usage_avg_5m at most 65.5%: gpu-1 has 0.0%");
    }
}
