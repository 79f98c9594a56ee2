//! Polls node exporters and writes their readings as node annotations.
