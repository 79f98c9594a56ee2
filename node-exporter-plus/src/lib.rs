//! Samples a node and serves a day of aggregates.
