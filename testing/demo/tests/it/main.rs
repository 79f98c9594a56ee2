//! The `plimsoll-demo` program as a process. Plimsoll's programs must have been built, as `make test` does.
#![allow(clippy::unwrap_used, clippy::panic)] // A failed unwrap is a failed test.

mod demo;
