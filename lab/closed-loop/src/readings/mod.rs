//! What monitoring systems make of samples: windows over them, and when their values reach a scheduler.

mod annotator;
mod prometheus;
mod samples;

pub use self::annotator::{Annotator, METRICS, Metric, NodeNotes};
pub use self::prometheus::Rules;
pub use self::samples::{Samples, SlidingMax};
