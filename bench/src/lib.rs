//! Criterion benchmarks, load generators and trace replays.
