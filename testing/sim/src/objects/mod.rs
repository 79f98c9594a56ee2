//! The objects and how they change: kinds, the store with its versions and history, and the rules for names, selectors
//! and patches. No HTTP.

pub(crate) mod failure;
pub(crate) mod follow;
pub(crate) mod kind;
pub(crate) mod merge;
pub(crate) mod selector;
pub(crate) mod store;
pub(crate) mod validation;
