//! The state of the Lease as one process has seen it, and the next call that follows. Without I/O: times are
//! parameters.

use std::net::SocketAddr;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tokio::time::Instant;

use super::Holder;

/// The Lease's annotation with the address at which other replicas reach its holder: `IP:PORT`.
pub(super) const ADDRESS: &str = "plimsoll.dev/address";

/// The longest duration of a Lease that the programs' flags accept. A Lease can say 68 years, and no replica would lead
/// until then.
const LONGEST: Duration = Duration::from_secs(300);

/// The next call.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Call {
    Read,
    Create(Lease),
    Replace(Lease),
    /// No call: another replica holds the Lease, or this one takes it no more.
    Nothing,
}

/// The state of the Lease as one process has seen it.
#[derive(Debug)]
pub(super) struct Candidate {
    identity: String,
    duration: Duration,
    /// The Lease as last read or written, and when this version of it was first seen.
    seen: Option<(Lease, Instant)>,
    /// Whether `seen` is recent enough for a write.
    current: bool,
    /// Until when a replica may still write that held the Lease when it was deleted.
    deleted_until: Option<Instant>,
    /// Until when this process may begin writes.
    pub(super) writes_until: Option<Instant>,
    /// How many terms of this process have begun.
    pub(super) terms: u64,
    /// The address of this process, which is written into the Lease.
    address: Option<SocketAddr>,
    /// Whether it has stopped taking and renewing the Lease.
    resigned: bool,
}

impl Candidate {
    pub(super) fn new(identity: String, duration: Duration) -> Self {
        Self {
            identity,
            duration,
            seen: None,
            current: false,
            deleted_until: None,
            writes_until: None,
            terms: 0,
            address: None,
            resigned: false,
        }
    }

    /// The same, but writes this address into the Lease.
    pub(super) fn with_address(self, address: Option<SocketAddr>) -> Self {
        Self { address, ..self }
    }

    /// The time between two renewals; also the most that a call may take.
    pub(super) fn period(&self) -> Duration {
        self.duration / 5
    }

    /// The identity of the holder, as last seen; empty if there is none.
    pub(super) fn holder(&self) -> &str {
        let spec = self.seen.as_ref().and_then(|(lease, _)| lease.spec.as_ref());
        spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
    }

    pub(super) fn known_holder(&self) -> Option<Holder> {
        let identity = self.holder().to_owned();
        if identity.is_empty() {
            return None;
        }
        let (lease, _) = self.seen.as_ref()?;
        let address = lease.metadata.annotations.as_ref().and_then(|all| all.get(ADDRESS));
        Some(Holder { identity, address: address.and_then(|text| text.parse().ok()) })
    }

    pub(super) fn is_held_here(&self) -> bool {
        self.holder() == self.identity
    }

    pub(super) fn is_free(&self, now: Instant) -> bool {
        let Some((lease, since)) = &self.seen else {
            return self.deleted_until.is_none_or(|until| now >= until);
        };
        self.holder().is_empty() || now.saturating_duration_since(*since) >= self.duration_of(lease)
    }

    /// How long this Lease lasts after a renewal, at most [`LONGEST`].
    fn duration_of(&self, lease: &Lease) -> Duration {
        let promised = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
        let promised = promised.and_then(|seconds| u64::try_from(seconds).ok());
        promised.map_or(self.duration, |seconds| Duration::from_secs(seconds).min(LONGEST))
    }

    /// The next call. `time` is written into the Lease for information; nothing is decided by it.
    pub(super) fn next_call(&self, now: Instant, time: Timestamp) -> Call {
        match &self.seen {
            _ if !self.current => Call::Read,
            _ if self.resigned => Call::Nothing,
            None if self.is_free(now) => Call::Create(self.renewed(&Lease::default(), time)),
            Some((lease, _)) if self.is_held_here() || self.is_free(now) => {
                Call::Replace(self.renewed(lease, time))
            }
            _ => Call::Nothing,
        }
    }

    /// Takes over a Lease that was read.
    pub(super) fn set_read(&mut self, lease: Option<Lease>, now: Instant) {
        if let (None, Some((before, _))) = (&lease, &self.seen)
            && !self.is_held_here()
            && !self.is_free(now)
        {
            // The replica that held the deleted Lease continues until its next renewal fails.
            self.deleted_until = Some(now + self.duration_of(before));
        }
        self.set_seen(lease, now);
        if !self.is_held_here() {
            self.writes_until = None;
        }
    }

    /// Takes over the Lease after a successful write that was sent at `sent`.
    pub(super) fn set_written(&mut self, lease: Lease, sent: Instant, now: Instant) {
        // A term continues while no other replica is seen as the holder. A write whose answer was lost begins none:
        // only the next one does, though the Lease names this process by then.
        self.terms += u64::from(self.writes_until.is_none());
        self.set_seen(Some(lease), now);
        self.writes_until = Some(sent + self.duration * 2 / 3);
    }

    /// Sets `seen`. A Lease of the same version keeps the time at which it was first seen: it was not renewed.
    pub(super) fn set_seen(&mut self, lease: Option<Lease>, now: Instant) {
        let before = self.seen.take();
        self.seen = lease.map(|lease| match before {
            Some((old, since))
                if old.metadata.resource_version == lease.metadata.resource_version =>
            {
                (lease, since)
            }
            _ => (lease, now),
        });
        self.current = true;
    }

    /// Records that `seen` may be out of date: another replica wrote, or it is not known whether a write was carried
    /// out.
    pub(super) fn invalidate(&mut self) {
        self.current = false;
    }

    /// Records that time has passed: unless this process holds the Lease, it has to be read again.
    pub(super) fn refresh(&mut self) {
        self.current &= self.is_held_here() && !self.resigned;
    }

    /// Stops taking and renewing the Lease.
    pub(super) fn resign(&mut self) {
        (self.resigned, self.writes_until, self.current) = (true, None, false);
    }

    /// `lease`, held by this process and renewed at `time`.
    pub(super) fn renewed(&self, lease: &Lease, time: Timestamp) -> Lease {
        let spec = lease.spec.clone().unwrap_or_default();
        let before = spec.holder_identity.as_deref().unwrap_or_default();
        let taken = before != self.identity;
        let changes = spec.lease_transitions.unwrap_or_default();
        let first = lease.metadata.resource_version.is_none();
        let spec = LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(self.duration.as_secs()).ok(),
            acquire_time: if taken { Some(MicroTime(time)) } else { spec.acquire_time },
            renew_time: Some(MicroTime(time)),
            lease_transitions: Some(changes.saturating_add(i32::from(taken && !first))),
            ..spec
        };
        let mut metadata = lease.metadata.clone();
        if let Some(address) = self.address {
            let annotations = metadata.annotations.get_or_insert_default();
            annotations.insert(ADDRESS.to_owned(), address.to_string());
        }
        Lease { metadata, spec: Some(spec) }
    }

    /// The Lease without a holder; `None` if this process does not hold it.
    pub(super) fn released(&self, time: Timestamp) -> Option<Lease> {
        if !self.is_held_here() {
            return None;
        }
        let (lease, _) = self.seen.as_ref()?;
        let spec = LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            renew_time: Some(MicroTime(time)),
            ..lease.spec.clone()?
        };
        Some(Lease { metadata: lease.metadata.clone(), spec: Some(spec) })
    }
}
