//! The checked-in code is what the protos give.

#![cfg(test)]

mod generated;
