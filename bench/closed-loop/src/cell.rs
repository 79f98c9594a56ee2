//! Cells: which ratio of use to request apps have, how much of the cluster is used, and which variant of the workload.

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

/// How far use varies with time, and how long pods live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Variant {
    /// The workload that goals refer to.
    Frozen,
    /// Twice the noise, and ratios of apps that change every day.
    Noisy,
    /// Lifetimes of a quarter (services) and half (jobs).
    ShortLived,
}

/// One workload, but for the seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cell {
    /// Ratios of use to request.
    pub shape: Shape,
    /// Mean CPU use in percent of the cluster's capacity.
    pub percent: u32,
    /// Variant of the workload.
    pub variant: Variant,
}

impl Cell {
    /// The nine cells of a variant: three shapes by 25, 40 and 55 percent.
    pub fn all(variant: Variant) -> Vec<Self> {
        let shapes = [Shape::Uniform, Shape::Skewed, Shape::Heavy];
        shapes
            .into_iter()
            .flat_map(|shape| [25, 40, 55].map(|percent| Self { shape, percent, variant }))
            .collect()
    }

    /// Mean use as a fraction of capacity.
    pub fn target(&self) -> f64 {
        f64::from(self.percent) / 100.0
    }

    /// Mean ratio of use to request, weighted by requested cores: requests fill at most 75% of the cluster.
    pub fn mean_ratio(&self) -> f64 {
        (self.target() / 0.75).max(0.5)
    }

    /// A number of the cell's own, from which random numbers are derived.
    pub fn code(&self) -> u64 {
        let variant = match self.variant {
            Variant::Frozen => 0,
            Variant::Noisy => 1,
            Variant::ShortLived => 2,
        };
        variant * 1_000 + self.shape as u64 * 100 + u64::from(self.percent)
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

    /// Reads `S40`; the variant is [`Variant::Frozen`].
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let cells = Self::all(Variant::Frozen);
        let found = cells.into_iter().find(|cell| cell.to_string().eq_ignore_ascii_case(text));
        found
            .ok_or_else(|| format!("expected U, S or H and 25, 40 or 55, e.g. S40, found `{text}`"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cells_name_reads_back() {
        for cell in Cell::all(Variant::Frozen) {
            assert_eq!(cell.to_string().parse(), Ok(cell));
        }
        assert!("X40".parse::<Cell>().is_err());
    }

    #[test]
    fn requests_fill_at_most_three_quarters() {
        for cell in Cell::all(Variant::Frozen) {
            assert!(cell.target() / cell.mean_ratio() <= 0.75 + 1e-9);
        }
    }
}
