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
    /// `B`: lasting pods with the use of Bitbrains' machines.
    Bitbrains,
    /// `P`: pods with the use of PlanetLab's machines.
    PlanetLab,
    /// `J`: SURF's jobs.
    Surf,
    /// `C`: half of the first, a quarter of each of the others.
    Combined,
}

impl Shape {
    /// Those of the generator and those of traces, by letter.
    const ALL: [(Self, char); 7] = [
        (Self::Uniform, 'U'),
        (Self::Skewed, 'S'),
        (Self::Heavy, 'H'),
        (Self::Bitbrains, 'B'),
        (Self::PlanetLab, 'P'),
        (Self::Surf, 'J'),
        (Self::Combined, 'C'),
    ];

    /// Whether it is one of traces.
    pub fn is_traced(self) -> bool {
        !matches!(self, Self::Uniform | Self::Skewed | Self::Heavy)
    }
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
    /// Pods use three quarters of the cluster's memory, more than of its CPU.
    Memory,
    /// Best-effort batch soaks up idle CPU on every node.
    Batch,
    /// Requests fill 60% and 90% of the cluster in place of 50% and 75%.
    Levels,
}

impl Variant {
    /// The policy that others are compared with: crane's plugin, but where it lets nearly all pods wait, since its
    /// limits of 65% and 75% are below what is in use.
    pub fn reference(self) -> &'static str {
        match self {
            Self::Frozen | Self::Noisy | Self::ShortLived | Self::Levels => "crane-plugin",
            Self::Memory | Self::Batch => "default",
        }
    }
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

    /// The cells of traces: four shapes at 40 percent.
    pub fn traced() -> Vec<Self> {
        let shapes = Shape::ALL.into_iter().map(|(shape, _)| shape);
        let traced = shapes.filter(|shape| shape.is_traced());
        traced.map(|shape| Self { shape, percent: 40, variant: Variant::Frozen }).collect()
    }

    /// Mean use as a fraction of capacity.
    pub fn target(&self) -> f64 {
        f64::from(self.percent) / 100.0
    }

    /// Mean ratio of use to request, weighted by requested cores: requests fill at most so much of the cluster, and
    /// less at 25% use.
    pub fn mean_ratio(&self) -> f64 {
        match self.variant {
            Variant::Frozen | Variant::Noisy | Variant::ShortLived | Variant::Batch => {
                (self.target() / 0.75).max(0.25 / 0.5)
            }
            Variant::Memory => self.target() / 0.6,
            Variant::Levels => (self.target() / 0.9).max(0.25 / 0.6),
        }
    }

    /// A number of the cell's own, from which random numbers are derived.
    pub fn code(&self) -> u64 {
        let variant = match self.variant {
            // The same pods.
            Variant::Frozen | Variant::Batch => 0,
            Variant::Noisy => 1,
            Variant::ShortLived => 2,
            Variant::Memory => 3,
            Variant::Levels => 4,
        };
        variant * 1_000 + self.shape as u64 * 100 + u64::from(self.percent)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = Shape::ALL.into_iter().find(|(shape, _)| *shape == self.shape);
        write!(f, "{}{}", letter.map_or('?', |(_, letter)| letter), self.percent)
    }
}

impl FromStr for Cell {
    type Err = String;

    /// Reads `S40`; the variant is [`Variant::Frozen`].
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = Shape::ALL.into_iter().flat_map(|(shape, _)| {
            let variant = Variant::Frozen;
            [25, 40, 55].map(|percent| Self { shape, percent, variant })
        });
        all.into_iter().find(|cell| cell.to_string().eq_ignore_ascii_case(text)).ok_or_else(|| {
            format!(
                "expected U, S, H, or of traces B, P, J or C, and 25, 40 or 55, e.g. S40, found `{text}`"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cells_name_reads_back() {
        for cell in Cell::all(Variant::Frozen).into_iter().chain(Cell::traced()) {
            assert_eq!(cell.to_string().parse(), Ok(cell));
        }
        assert!("X40".parse::<Cell>().is_err());
    }

    #[test]
    fn requests_fill_what_the_variant_says() {
        let filled = |name: &str, variant| {
            let cell = Cell { variant, ..name.parse().unwrap() };
            (100.0 * cell.target() / cell.mean_ratio()).round()
        };
        for (variant, at_25, at_40) in [
            (Variant::Frozen, 50.0, 75.0),
            (Variant::Memory, 60.0, 60.0),
            (Variant::Levels, 60.0, 90.0),
        ] {
            assert_eq!((filled("S25", variant), filled("S40", variant)), (at_25, at_40));
            assert_eq!(filled("H55", variant), at_40);
        }
    }
}
