//! Facts about whole runs.
#![allow(clippy::unwrap_used, clippy::panic)] // a test that panics has failed, and says where

mod frozen;
mod runs;
