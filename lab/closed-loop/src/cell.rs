//! Cells: which ratio of use to request apps have, and how much of the cluster is used.

use std::fmt;
use std::str::FromStr;

/// How the ratio of CPU use to CPU request differs between apps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shape {
    /// `U`: all apps have the same ratio.
    Uniform,
    /// `S`: lognormal with sigma 0.8.
    Skewed,
    /// `H`: a tenth of the apps uses twice its request, all others the same lower ratio.
    Heavy,
}

/// One workload, but for the seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cell {
    /// Ratios of use to request.
    pub shape: Shape,
    /// Mean CPU use in percent of the cluster's capacity.
    pub percent: u32,
}

impl Cell {
    /// The nine cells: three shapes by 25, 40 and 55 percent.
    pub fn all() -> Vec<Self> {
        let shapes = [Shape::Uniform, Shape::Skewed, Shape::Heavy];
        shapes
            .into_iter()
            .flat_map(|shape| [25, 40, 55].map(|percent| Self { shape, percent }))
            .collect()
    }

    /// Mean use as a fraction of capacity.
    pub fn target(&self) -> f64 {
        f64::from(self.percent) / 100.0
    }

    /// Mean ratio of use to request, weighted by requested cores: requests fill 75% of the cluster, and 50% at 25% use.
    pub fn mean_ratio(&self) -> f64 {
        (self.target() / 0.75).max(0.25 / 0.5)
    }

    /// A number of the cell's own, from which random numbers are derived.
    pub fn code(&self) -> u64 {
        self.shape as u64 * 100 + u64::from(self.percent)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = match self.shape {
            Shape::Uniform => 'U',
            Shape::Skewed => 'S',
            Shape::Heavy => 'H',
        };
        write!(f, "{letter}{}", self.percent)
    }
}

impl FromStr for Cell {
    type Err = String;

    /// Reads `S40`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut all = Self::all().into_iter();
        all.find(|cell| cell.to_string().eq_ignore_ascii_case(text)).ok_or_else(|| {
            format!("expected U, S or H, and 25, 40 or 55, e.g. S40, found `{text}`")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cells_name_reads_back() {
        for cell in Cell::all() {
            assert_eq!(cell.to_string().parse(), Ok(cell));
            let filled = (100.0 * cell.target() / cell.mean_ratio()).round();
            assert_eq!(filled, if cell.percent == 25 { 50.0 } else { 75.0 });
        }
        assert!("X40".parse::<Cell>().is_err());
    }
}
