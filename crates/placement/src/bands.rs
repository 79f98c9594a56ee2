//! Bands: a node's place in eight classes, for schedulers that ask nobody. Pods prefer a lower one, by what an
//! admission policy writes into them.
//!
//! Invariants: the band of a node for pods with GPUs never changes; its other one does not while the load varies within
//! two bands, and not for a load that is unknown. No load makes a node with GPUs preferred to those without.

use std::fmt;

use crate::fnv;
use crate::units::NodeName;

/// How many there are.
pub const BANDS: u8 = 8;
/// CPU for each GPU, in cores, from which on other pods leave enough of it to those with GPUs.
const AMPLE: f64 = 32.0;
/// By how much two loads differ, as fractions of a node, that are one band apart.
const WIDTH: f64 = 0.125;
/// How far outside its band a node's load must be for another one, in bands.
const SLACK: f64 = 0.5;

/// A band: 0 is preferred, 7 comes last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Band(u8);

impl Band {
    /// For pods without GPUs, of a node without GPUs whose load is typical.
    pub const MIDDLE: Self = Self(3);

    /// Reads what [`fmt::Display`] writes; `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        let [digit @ b'0'..=b'7'] = text.as_bytes() else { return None };
        Some(Self(digit - b'0'))
    }

    /// Its number, 0 to 7.
    pub fn number(self) -> u8 {
        self.0
    }

    /// The band for pods with GPUs. Nodes fill up in one order, whatever their load, so that whole GPUs stay free on
    /// the last ones. It is by a hash of the name: a node that comes or goes moves no other.
    pub fn of_gpus(node: &NodeName) -> Self {
        let hash = fnv::hash(node.as_str().as_bytes());
        // The lowest bits alone go by the last bytes alone.
        Self(((hash ^ (hash >> 32)) % u64::from(BANDS)) as u8)
    }

    /// The band for pods without GPUs, of a node in the band `now`, and in `middle` at a typical load. `above` is its
    /// load less what is typical, a fraction of the node, where that is known.
    pub fn of_cpu(middle: Self, above: Option<f64>, now: Option<Self>) -> Self {
        let Some(above) = above else { return now.unwrap_or(middle) };
        // Idle GPUs are no reason to give their CPU away.
        let least = if middle > Self::MIDDLE { f64::from(middle.0) + 0.5 } else { 0.0 };
        let place = (f64::from(middle.0) + 0.5 + above / WIDTH).max(least);
        if let Some(now) = now {
            let (from, to) = (f64::from(now.0) - SLACK, f64::from(now.0) + 1.0 + SLACK);
            if (from..to).contains(&place) {
                return now;
            }
        }
        Self(place.clamp(0.0, f64::from(BANDS - 1)) as u8)
    }
}

impl fmt::Display for Band {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What makes a node's CPU worth keeping for pods with GPUs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// GPUs whose memory is shared.
    pub gpus: usize,
    /// Cores that pods may request; `None` where that is not known.
    pub cores: Option<f64>,
}

impl Shape {
    /// The node's band for pods without GPUs at a typical load. Where a GPU has little CPU, they fill nodes in the
    /// order of those with GPUs, so that on the last ones whole GPUs stay free with the CPU that goes with them.
    pub fn band(self, node: &NodeName) -> Band {
        let Band(middle) = Band::MIDDLE;
        if self.gpus == 0 {
            return Band::MIDDLE;
        }
        if self.cores.is_some_and(|cores| cores >= AMPLE * self.gpus as f64) {
            return Band(middle + 1);
        }
        let Band(order) = Band::of_gpus(node);
        let first = middle + 2;
        Band(first + order * (BANDS - first) / BANDS)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn without_gpus(above: f64, now: Option<u8>) -> u8 {
        Band::of_cpu(Band::MIDDLE, Some(above), now.map(Band)).0
    }

    #[test]
    fn nodes_with_little_cpu_for_each_gpu_come_last_in_the_order_of_gpus() {
        let mut by_order = [0; BANDS as usize];
        for number in 0..200 {
            let node = NodeName::from(format!("gpu-{number:03}"));
            let band = |gpus, cores| Shape { gpus, cores }.band(&node).0;
            let ample =
                [band(0, Some(4.0)), band(0, None), band(1, Some(32.0)), band(4, Some(128.0))];
            assert_eq!(ample, [3, 3, 4, 4]);
            let scarce = band(8, Some(255.9));
            assert_eq!((band(1, Some(0.0)), band(1, None)), (scarce, scarce), "not known");
            by_order[usize::from(Band::of_gpus(&node).0)] = scarce;
        }
        assert_eq!(by_order, [5, 5, 5, 6, 6, 6, 7, 7]);
    }

    #[test]
    fn a_load_moves_a_node_by_a_band_for_each_eighth() {
        let of = |above| without_gpus(above, None);
        assert_eq!([-0.9, -0.25, 0.0, 0.125, 0.25, 0.9].map(of), [0, 1, 3, 4, 5, 7]);
    }

    #[test]
    fn a_low_load_makes_no_node_with_gpus_preferred() {
        let of = |above, now: Option<u8>| Band::of_cpu(Band(6), Some(above), now.map(Band)).0;
        assert_eq!([-0.9, -0.1, 0.0, 0.125, 0.9].map(|above| of(above, None)), [6, 6, 6, 7, 7]);
        assert_eq!(
            (of(-0.9, Some(7)), of(-0.9, Some(3))),
            (7, 6),
            "within half a band; far outside"
        );
    }

    #[test]
    fn a_load_that_varies_around_the_edge_of_a_band_moves_no_node() {
        // Between the bands 3 and 4, a quarter of a band to both sides.
        let loads = [0.03125, 0.09375, 0.03125, 0.09375];
        let ends = |now| loads.iter().fold(now, |now, above| without_gpus(*above, Some(now)));
        assert_eq!((ends(3), ends(4)), (3, 4));
        assert_eq!(without_gpus(0.15, Some(3)), 4, "further than half a band outside");
    }

    #[test]
    fn an_unknown_load_leaves_a_node_where_it_is() {
        assert_eq!(Band::of_cpu(Band::MIDDLE, None, Some(Band(6))), Band(6));
        assert_eq!(Band::of_cpu(Band::MIDDLE, None, None), Band::MIDDLE);
    }

    #[test]
    fn names_in_a_row_are_in_all_bands_alike() {
        let mut nodes = [0; BANDS as usize];
        for number in 0..800 {
            nodes[usize::from(Band::of_gpus(&format!("gpu-{number:03}").into()).0)] += 1;
        }
        assert!(nodes.iter().all(|count| (70..130).contains(count)), "{nodes:?}");
    }

    proptest! {
        #[test]
        fn a_band_reads_back_and_is_settled_at_once(
            name in "[a-z]{1,8}",
            gpus in 0_usize..16,
            cores in proptest::option::of(any::<f64>()),
            above in proptest::option::of(any::<f64>()),
            now in proptest::option::of(0_u8..BANDS),
        ) {
            let middle = Shape { gpus, cores }.band(&name.as_str().into());
            let band = Band::of_cpu(middle, above, now.map(Band));
            prop_assert_eq!(Band::parse(&band.to_string()), Some(band));
            prop_assert_eq!(Band::of_cpu(middle, above, Some(band)), band);
        }

        #[test]
        fn no_other_text_is_a_band(text in "\\PC{0,3}") {
            if let Some(band) = Band::parse(&text) {
                prop_assert_eq!(band.to_string(), text);
            }
        }
    }
}
