//! The default trace as two tables of counts, which are part of the repository.

use super::csv::CsvError;
use super::trace::Trace;

const NODES: &str = include_str!("../../openb/node_classes.csv");
const PODS: &str = include_str!("../../openb/default_pod_types.csv");

/// The default trace, without times.
///
/// # Errors
///
/// The tables are wrong, which a test excludes.
pub fn default_trace() -> Result<Trace, CsvError> {
    Trace::read(("lab/openb/node_classes.csv", NODES), ("lab/openb/default_pod_types.csv", PODS))
}
