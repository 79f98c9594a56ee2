//! The lines that `gpu-probe` writes, in both directions: one for each GPU, and one at the end of a report.
//!
//! ```text
//! 0 GPU-8f2c… 37 512 23028 41 60500      index, UUID, use in %, used MiB, total MiB, °C, mW; `-` is unknown
//! 1 GPU-77aa… lost                       the GPU does not answer
//! .                                      end of the report
//! ```

use std::fmt;

/// What is reported of one GPU.
///
/// # Examples
/// ```
/// use node_exporter_plus::gpu::GpuReport;
///
/// let gpu = GpuReport::parse("0 GPU-8f 37 512 23028 41 -").unwrap();
/// assert_eq!((gpu.index, gpu.uuid.as_str()), (0, "GPU-8f"));
/// assert_eq!(gpu.reading.unwrap().usage, Some(37));
/// assert_eq!(gpu.to_string(), "0 GPU-8f 37 512 23028 41 -");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuReport {
    /// NVML's index, which can change with a reboot.
    pub index: u32,
    /// `GPU-…`.
    pub uuid: String,
    /// Its values; `None` if it does not answer.
    pub reading: Option<GpuReading>,
}

/// The values of one GPU; `None` is what it does not measure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GpuReading {
    /// The share of time in which a kernel ran, 0 to 100.
    pub usage: Option<u64>,
    /// Memory in use, MiB.
    pub used: Option<u64>,
    /// All memory, MiB.
    pub total: Option<u64>,
    /// In degrees Celsius.
    pub temperature: Option<u64>,
    /// In milliwatts.
    pub power: Option<u64>,
}

/// The line that ends a report.
pub const END: &str = ".";

impl fmt::Display for GpuReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.index, self.uuid)?;
        let Some(GpuReading { usage, used, total, temperature, power }) = self.reading else {
            return f.write_str(" lost");
        };
        [usage, used, total, temperature, power].iter().try_for_each(|number| match number {
            Some(number) => write!(f, " {number}"),
            None => f.write_str(" -"),
        })
    }
}

impl GpuReport {
    /// Reads a GPU's line; `None` if it is none.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let (index, uuid, reading) = match words[..] {
            [index, uuid, "lost"] => (index, uuid, None),
            [index, uuid, usage, used, total, temperature, power] => {
                let reading = GpuReading {
                    usage: number(usage)?,
                    used: number(used)?,
                    total: number(total)?,
                    temperature: number(temperature)?,
                    power: number(power)?,
                };
                (index, uuid, Some(reading))
            }
            _ => return None,
        };
        let named = !uuid.is_empty() && uuid.chars().all(|c| c.is_ascii_graphic());
        named.then_some(Self { index: index.parse().ok()?, uuid: uuid.to_owned(), reading })
    }
}

/// The inner `None` is unknown, the outer one no number.
fn number(word: &str) -> Option<Option<u64>> {
    if word == "-" { Some(None) } else { word.parse().ok().map(Some) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_are_as_documented() {
        let reading = GpuReading {
            usage: Some(37),
            used: Some(512),
            total: Some(23_028),
            ..GpuReading::default()
        };
        let gpu = GpuReport { index: 0, uuid: "GPU-8f".to_owned(), reading: Some(reading) };
        assert_eq!(gpu.to_string(), "0 GPU-8f 37 512 23028 - -");
        let lost = GpuReport { index: 1, uuid: "GPU-77".to_owned(), reading: None };
        assert_eq!(lost.to_string(), "1 GPU-77 lost");
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(index: u32, uuid in "GPU-[0-9a-f]{1,8}", numbers: Option<[Option<u64>; 5]>) {
            let reading = numbers.map(|[usage, used, total, temperature, power]| {
                GpuReading { usage, used, total, temperature, power }
            });
            let gpu = GpuReport { index, uuid, reading };
            prop_assert_eq!(GpuReport::parse(&gpu.to_string()), Some(gpu));
        }

        #[test]
        fn no_line_panics(line in "\\PC{0,80}") {
            let _ = GpuReport::parse(&line);
        }
    }
}
