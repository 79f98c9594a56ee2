//! Bands: a node's place in eight classes, for schedulers that ask nobody. Pods prefer a lower one, by what an
//! admission policy writes into them.
//!
//! Invariants: the band of a node for pods with GPUs never changes; its other one does not while the load varies within
//! two bands, and not for a load that is unknown.

use std::fmt;

use crate::fnv;
use crate::units::NodeName;

/// How many there are.
pub const BANDS: u8 = 8;
/// A node without GPUs, of a load that is typical, is in this one, and those with GPUs come after it.
const MIDDLE: u8 = 3;
/// CPU for each GPU, in cores, from which on a node with GPUs is no worse than one without.
const AMPLE: f64 = 64.0;
/// By how much two loads differ, as fractions of a node, that are one band apart.
const WIDTH: f64 = 0.125;
/// How far outside its band a node's load must be for another one, in bands.
const SLACK: f64 = 0.5;

/// A band: 0 is preferred, 7 comes last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Band(u8);

impl Band {
    /// Reads what [`fmt::Display`] writes; `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        let [digit @ b'0'..=b'7'] = text.as_bytes() else { return None };
        Some(Self(digit - b'0'))
    }

    /// Its number, 0 to 7.
    pub fn number(self) -> i64 {
        self.0.into()
    }

    /// The band for pods with GPUs. Nodes fill up in one order, whatever their load, so that whole GPUs stay free on
    /// the last ones. It is by a hash of the name: a node that comes or goes moves no other.
    pub fn of_gpus(node: &NodeName) -> Self {
        let hash = fnv::hash(node.as_str().as_bytes());
        // The lowest bits alone go by the last bytes alone.
        Self(((hash ^ (hash >> 32)) % u64::from(BANDS)) as u8)
    }

    /// The band for pods without GPUs, of a node in the band `now`. `above` is its load less what is typical, a
    /// fraction of the node, where that is known.
    pub fn of_cpu(shape: Shape, above: Option<f64>, now: Option<Self>) -> Self {
        let middle = shape.band();
        let Some(above) = above else { return now.unwrap_or(Self(middle)) };
        let place = f64::from(middle) + 0.5 + above / WIDTH;
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
    /// One band more for each halving of the cores for each GPU, to the last one below 8.
    fn band(self) -> u8 {
        if self.gpus == 0 {
            return MIDDLE;
        }
        let last = BANDS - 1;
        let Some(cores) = self.cores else { return last };
        let halvings = (AMPLE * self.gpus as f64 / cores).log2().ceil();
        // Not a number of no cores at all.
        MIDDLE + halvings.clamp(0.0, f64::from(last - MIDDLE)) as u8
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn without_gpus(above: f64, now: Option<u8>) -> u8 {
        Band::of_cpu(Shape { gpus: 0, cores: None }, Some(above), now.map(Band)).0
    }

    #[test]
    fn less_cpu_for_each_gpu_is_a_later_band() {
        let shape = |gpus, cores| Shape { gpus, cores: Some(cores) }.band();
        let shapes =
            [(0, 4.0), (1, 128.0), (2, 104.0), (2, 64.0), (8, 128.0), (8, 96.0), (8, 32.0)];
        assert_eq!(shapes.map(|(gpus, cores)| shape(gpus, cores)), [3, 3, 4, 4, 5, 6, 7]);
        assert_eq!((shape(1, 0.0), Shape { gpus: 1, cores: None }.band()), (7, 7));
    }

    #[test]
    fn a_load_moves_a_node_by_a_band_for_each_eighth() {
        let of = |above| without_gpus(above, None);
        assert_eq!([-0.9, -0.25, 0.0, 0.125, 0.25, 0.9].map(of), [0, 1, 3, 4, 5, 7]);
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
        let shape = Shape { gpus: 0, cores: None };
        assert_eq!(Band::of_cpu(shape, None, Some(Band(6))), Band(6));
        assert_eq!(Band::of_cpu(shape, None, None), Band(MIDDLE));
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
            gpus in 0_usize..16,
            cores in proptest::option::of(any::<f64>()),
            above in proptest::option::of(any::<f64>()),
            now in proptest::option::of(0_u8..BANDS),
        ) {
            let shape = Shape { gpus, cores };
            let band = Band::of_cpu(shape, above, now.map(Band));
            prop_assert_eq!(Band::parse(&band.to_string()), Some(band));
            prop_assert_eq!(Band::of_cpu(shape, above, Some(band)), band);
        }

        #[test]
        fn no_other_text_is_a_band(text in "\\PC{0,3}") {
            if let Some(band) = Band::parse(&text) {
                prop_assert_eq!(band.to_string(), text);
            }
        }
    }
}
