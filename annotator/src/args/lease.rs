//! Which of several replicas is at work.

use std::time::Duration;

/// The Lease.
#[derive(Debug, Clone, clap::Args)]
pub struct LeaseArgs {
    /// The Lease by which one of several replicas is chosen: it polls and writes, the others wait. In the
    /// namespace of the pod, or of the kubeconfig's context. Without it this must be the only replica
    /// [default: none].
    #[arg(long, env = "PLIMSOLL_LEASE_NAME", value_name = "NAME")]
    pub lease_name: Option<String>,

    /// How long the others wait after the last renewal before one of them takes the Lease. A replica that
    /// cannot renew it stops writing after two thirds of that. Whole seconds, 1s to 5m.
    #[arg(
        long,
        env = "PLIMSOLL_LEASE_DURATION",
        default_value = "15s",
        value_parser = settings::lease_duration,
        value_name = "DURATION"
    )]
    pub lease_duration: Duration,
}
