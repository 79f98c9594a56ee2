//! What still fits on cards. Pure: free units in, numbers of pods out.

/// What a card that takes pods has free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Free {
    /// Units.
    pub(crate) units: u32,
    /// Percent of its compute.
    pub(crate) cores: u32,
}

/// What a pod asks for on each of its cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Units, at least 1.
    pub(crate) units: u32,
    /// Percent of the compute.
    pub(crate) cores: u32,
    /// Cards of one node, at least 1.
    pub(crate) count: u32,
}

impl Asked {
    /// How many such shares one card has room for.
    pub(crate) fn on_card(self, free: Free) -> u64 {
        let by_units = free.units / self.units.max(1);
        let by_cores = free.cores.checked_div(self.cores).unwrap_or(u32::MAX);
        u64::from(by_units.min(by_cores))
    }

    /// How many such pods one node has room for: each takes one share of as many cards as it asks for. The most pods
    /// `n` for which the cards have `n × count` shares, where no card gives more than one share to a pod.
    pub(crate) fn on_node(self, cards: &[Free]) -> u64 {
        let shares: Vec<u64> = cards.iter().map(|free| self.on_card(*free)).collect();
        let count = u64::from(self.count.max(1));
        let mut pods = shares.iter().sum::<u64>() / count;
        while pods > 0 {
            let usable: u64 = shares.iter().map(|share| *share.min(&pods)).sum();
            if usable >= pods * count {
                return pods;
            }
            // No more than this can fit, so that a few steps suffice.
            pods = (usable / count).min(pods - 1);
        }
        0
    }

    /// The largest size that fits on this node for as many cards and as much compute.
    pub(crate) fn largest(self, cards: &[Free]) -> u32 {
        let mut free: Vec<u32> =
            cards.iter().filter(|card| card.cores >= self.cores).map(|card| card.units).collect();
        free.sort_unstable_by(|a, b| b.cmp(a));
        let last = usize::try_from(self.count.max(1)).unwrap_or(usize::MAX) - 1;
        free.get(last).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free(units: &[u32]) -> Vec<Free> {
        units.iter().map(|units| Free { units: *units, cores: 100 }).collect()
    }

    fn asked(units: u32, count: u32) -> Asked {
        Asked { units, cores: 0, count }
    }

    #[test]
    fn a_card_gives_each_pod_one_share() {
        assert_eq!(asked(8, 1).on_node(&free(&[17, 8, 7])), 3);
        // Three shares of one card serve no pod that asks for two cards.
        assert_eq!(asked(8, 2).on_node(&free(&[24, 0])), 0);
        assert_eq!(asked(8, 2).on_node(&free(&[24, 8])), 1);
        assert_eq!(asked(8, 2).on_node(&free(&[16, 16, 16])), 3);
        assert_eq!(asked(8, 3).on_node(&free(&[80, 16, 8])), 1);
        assert_eq!(asked(1, 1).on_node(&[]), 0);
    }

    #[test]
    fn compute_counts_where_it_is_asked_for() {
        let asked = Asked { units: 1, cores: 30, count: 1 };
        assert_eq!(asked.on_card(Free { units: 80, cores: 100 }), 3);
        assert_eq!(asked.on_card(Free { units: 2, cores: 100 }), 2);
        assert_eq!(
            asked.largest(&[Free { units: 80, cores: 20 }, Free { units: 5, cores: 30 }]),
            5
        );
    }

    #[test]
    fn the_largest_size_is_that_of_the_last_card_which_is_needed() {
        assert_eq!(asked(1, 1).largest(&free(&[3, 9, 5])), 9);
        assert_eq!(asked(1, 2).largest(&free(&[3, 9, 5])), 5);
        assert_eq!(asked(1, 4).largest(&free(&[3, 9, 5])), 0);
    }

    /// By trying all ways.
    #[test]
    fn as_many_pods_fit_as_a_search_finds() {
        for cards in [[3u64, 1, 1], [2, 2, 2], [5, 1, 0], [4, 4, 1]] {
            for count in 1..=3u32 {
                let units: Vec<u32> = cards.iter().map(|it| u32::try_from(*it).unwrap()).collect();
                let found = searched(cards.to_vec(), count as usize);
                assert_eq!(asked(1, count).on_node(&free(&units)), found, "{cards:?} {count}");
            }
        }
    }

    /// Each pod takes the fullest cards, which is best.
    fn searched(mut shares: Vec<u64>, count: usize) -> u64 {
        let mut pods = 0;
        loop {
            shares.sort_unstable_by(|a, b| b.cmp(a));
            if shares.len() < count || shares[count - 1] == 0 {
                return pods;
            }
            shares[..count].iter_mut().for_each(|share| *share -= 1);
            pods += 1;
        }
    }
}
