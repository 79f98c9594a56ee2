//! What every process shares: logs, admin endpoints, shutdown.
