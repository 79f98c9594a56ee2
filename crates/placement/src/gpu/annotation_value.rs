//! The values of the annotations that say what a container requests of its GPUs beyond units.

use super::GpuUse;
use crate::units::{Cores, Units};

/// The most GPUs that one container may request: more than any machine has.
pub(super) const MAX_GPUS: u32 = 64;

/// The most processes of one container that use its GPUs: more than any GPU serves.
const MAX_PROCESSES: u16 = 1024;

/// Characters of a value that an error repeats.
const QUOTED: usize = 64;

/// Why the value of an annotation is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}, found `{found}`")]
pub struct UnexpectedValue {
    /// The values that are valid.
    pub expected: &'static str,
    /// The value that was found, cut to 64 characters.
    pub found: String,
}

impl UnexpectedValue {
    /// This value where these are valid.
    pub fn new(expected: &'static str, found: &str) -> Self {
        Self { expected, found: found.chars().take(QUOTED).collect() }
    }
}

impl GpuUse {
    /// Takes the GPUs of `gpu-card-count`: `2`, `exclusive` or `2 exclusive`.
    ///
    /// # Errors
    ///
    /// For any other text, and fewer than 1 or more than 64 GPUs.
    pub fn read_gpu_count(&mut self, value: &str) -> Result<(), UnexpectedValue> {
        let words: Vec<&str> = value.split_whitespace().collect();
        let (count, exclusive) = match words[..] {
            ["exclusive"] => (Some(1), true),
            [count, "exclusive"] => (count.parse().ok(), true),
            [count] => (count.parse().ok(), false),
            _ => (None, false),
        };
        let expected = "1 to 64 GPUs, `exclusive`, or both as in `2 exclusive`";
        let gpus = count.filter(|gpus| (1..=MAX_GPUS).contains(gpus));
        self.gpus = gpus.ok_or_else(|| UnexpectedValue::new(expected, value))?;
        self.exclusive = exclusive;
        Ok(())
    }

    /// Takes the compute of `gpu-cores`, in percent of each GPU.
    ///
    /// # Errors
    ///
    /// For a text that is no number from 0 to 100.
    pub fn read_cores(&mut self, value: &str) -> Result<(), UnexpectedValue> {
        let cores = value.parse().ok().map(Cores).filter(|cores| *cores <= Cores::ALL);
        let expected = "0 to 100 percent of each GPU";
        self.cores = cores.ok_or_else(|| UnexpectedValue::new(expected, value))?;
        Ok(())
    }

    /// Takes the processes of `gpu-processes`.
    ///
    /// # Errors
    ///
    /// For a text that is no number from 1 to 1024.
    pub fn read_processes(&mut self, value: &str) -> Result<(), UnexpectedValue> {
        let processes = value.parse().ok().filter(|count| (1..=MAX_PROCESSES).contains(count));
        let expected = "1 to 1024 processes";
        self.processes = processes.ok_or_else(|| UnexpectedValue::new(expected, value))?;
        Ok(())
    }

    /// Takes the units of `gpu-mem-limit`, on all GPUs together.
    ///
    /// # Errors
    ///
    /// For a text that is no whole number.
    pub fn read_memory_limit(&mut self, value: &str) -> Result<(), UnexpectedValue> {
        let units = value.parse().ok().map(Units);
        let expected = "a whole number of units";
        self.limit = Some(units.ok_or_else(|| UnexpectedValue::new(expected, value))?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_gpu_count(value: &str) -> Result<(u32, bool), UnexpectedValue> {
        let mut gpu_use = GpuUse::default();
        gpu_use.read_gpu_count(value).map(|()| (gpu_use.gpus, gpu_use.exclusive))
    }

    #[test]
    fn a_gpu_count_is_a_number_or_exclusive_or_both() {
        for (value, gpus) in [
            ("1", (1, false)),
            ("64", (64, false)),
            ("exclusive", (1, true)),
            (" 2  exclusive ", (2, true)),
        ] {
            assert_eq!(read_gpu_count(value), Ok(gpus), "{value:?}");
        }
        for value in
            ["", "0", "65", "-1", "two", "exclusive 2", "2 exclusiv", "2 exclusive x", "2 2"]
        {
            let error = read_gpu_count(value).unwrap_err().to_string();
            assert!(error.starts_with("expected 1 to 64 GPUs"), "{value:?}: {error}");
        }
    }

    #[test]
    fn a_value_out_of_its_range_is_refused_and_changes_nothing() {
        let mut gpu_use = GpuUse::default();
        assert!(gpu_use.read_cores("101").is_err() && gpu_use.read_cores("a").is_err());
        assert!(gpu_use.read_processes("0").is_err() && gpu_use.read_processes("1025").is_err());
        assert!(gpu_use.read_memory_limit("1.5").is_err());
        assert_eq!(gpu_use, GpuUse::default());
        gpu_use.read_cores("100").unwrap();
        gpu_use.read_processes("1024").unwrap();
        gpu_use.read_memory_limit("8").unwrap();
        let wanted =
            GpuUse { cores: Cores(100), processes: 1024, limit: Some(Units(8)), ..gpu_use };
        assert_eq!(gpu_use, wanted);
    }
}
