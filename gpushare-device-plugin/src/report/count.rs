//! The number of GPUs in the Node's status. A task of its own writes it: its failure delays nothing else.

use std::time::Duration;

use cluster::CallError;
use placement::names::GPU_COUNT_RESOURCE;
use tokio::time::{Instant, sleep};

use super::{REWRITE_AFTER, Reporter, WRITE_TIMEOUT, log_unwritten_status};

/// Pause between two checks of the number of GPUs.
const COUNT_PAUSE: Duration = Duration::from_secs(10);

/// The number of GPUs, as it was last written.
struct CountWritten {
    count: u32,
    /// The number of registrations at that time.
    registrations: u64,
    at: Instant,
}

impl Reporter {
    /// Writes the number of GPUs, if that is wanted, when it changes and after each registration: a kubelet that
    /// starts sets resources without a plugin to 0.
    pub(super) async fn counts(&self) {
        if !self.gpu_count {
            return;
        }
        let mut gpus = self.gpus.clone();
        let mut written: Option<CountWritten> = None;
        let mut logged = String::new();
        loop {
            let count = u32::try_from(gpus.borrow_and_update().iter().count()).unwrap_or(u32::MAX);
            let registrations = self.metrics.registrations.get();
            let is_due = written.as_ref().is_none_or(|last| {
                last.count != count
                    || last.registrations != registrations
                    || last.at.elapsed() >= REWRITE_AFTER
            });
            if count > 0 && is_due {
                match self.write_count(count).await {
                    Ok(()) => {
                        written = Some(CountWritten { count, registrations, at: Instant::now() });
                    }
                    Err(error) => {
                        self.metrics.count_failures.inc();
                        log_unwritten_status("the number of GPUs", &error, &mut logged);
                    }
                }
            }
            tokio::select! {
                changed = gpus.changed() => if changed.is_err() { return },
                () = sleep(COUNT_PAUSE) => {}
            }
        }
    }

    async fn write_count(&self, count: u32) -> Result<(), CallError> {
        let (client, node) = (&self.client, &self.node);
        cluster::patch_node_capacity(client, node, GPU_COUNT_RESOURCE, count, WRITE_TIMEOUT).await
    }
}
