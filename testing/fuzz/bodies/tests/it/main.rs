//! The fuzz targets on stable Rust.
#![allow(clippy::unwrap_used, clippy::panic)] // A failed unwrap is a failed test.

mod stable;
