//! The two ways in which GPUs are given out.

/// How the GPUs of a node are given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GivenOut {
    /// By units.
    Units,
    /// By ResourceClaims: MiB count in place of units.
    Claims,
}

impl GivenOut {
    /// Both, in this order.
    pub const BOTH: [Self; 2] = [Self::Units, Self::Claims];
}
