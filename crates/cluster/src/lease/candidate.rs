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

/// The duration in seconds of a Lease that its holder has released, as client-go writes it.
const RELEASED_FOR: i32 = 1;

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
    /// The Lease as last read or written.
    seen: Option<Lease>,
    /// When another replica may take `seen`, unless it changes; `None` where no Lease was ever seen.
    free_at: Option<Instant>,
    /// Whether `seen` is recent enough for a write.
    current: bool,
    /// Whether this process has written `seen`.
    own: bool,
    /// The writes of this process that may have made the present Lease: the time in each, and when it was sent.
    sent: Vec<(MicroTime, Instant)>,
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
            free_at: None,
            current: false,
            own: false,
            sent: Vec::new(),
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
        self.seen.as_ref().map_or("", holder_of)
    }

    pub(super) fn known_holder(&self) -> Option<Holder> {
        let identity = self.holder().to_owned();
        if identity.is_empty() {
            return None;
        }
        let annotations = self.seen.as_ref()?.metadata.annotations.as_ref();
        let text = annotations.and_then(|all| all.get(ADDRESS));
        let address = text.and_then(|text| text.parse().ok());
        Some(Holder { identity, address, free_at: self.free_at? })
    }

    /// Whether this process has written the Lease and no other has since. A Lease can name it without that, as after
    /// an edit or a restored backup.
    pub(super) fn is_held_here(&self) -> bool {
        self.own
    }

    pub(super) fn is_free(&self, now: Instant) -> bool {
        self.free_at.is_none_or(|at| now >= at)
    }

    /// Whether it has ever seen a Lease.
    #[cfg(test)]
    pub(super) fn has_seen_one(&self) -> bool {
        self.free_at.is_some()
    }

    /// How long this Lease lasts after a renewal, at most [`LONGEST`].
    fn duration_of(&self, lease: &Lease) -> Duration {
        let promised =
            lease.spec.as_ref().and_then(|spec| u64::try_from(spec.lease_duration_seconds?).ok());
        promised.map_or(self.duration, |seconds| Duration::from_secs(seconds).min(LONGEST))
    }

    /// How long a writer may write since it was last seen, whose Lease has become another one.
    fn wait_after(&self, before: Option<&Lease>, lease: Option<&Lease>, now: Instant) -> Duration {
        match (before, lease) {
            (None, None) => Duration::ZERO,
            (before, Some(lease)) if is_release(before, lease) => Duration::ZERO,
            // No other can have taken it since this process wrote it.
            (Some(_), None) if self.own && self.writes_until.is_some_and(|until| now < until) => {
                Duration::ZERO
            }
            (before, lease) => [before, lease]
                .into_iter()
                .flatten()
                .fold(self.duration, |longest, lease| longest.max(self.duration_of(lease))),
        }
    }

    /// The next call. `time` is written into the Lease: by it this process knows its own writes. Others decide nothing
    /// by it.
    pub(super) fn next_call(&mut self, now: Instant, time: Timestamp) -> Call {
        if !self.current {
            return Call::Read;
        }
        if self.resigned || !(self.own || self.is_free(now)) {
            return Call::Nothing;
        }
        let writes_for = self.writes_for();
        self.sent.retain(|(_, sent)| now.saturating_duration_since(*sent) < writes_for);
        self.sent.push((MicroTime(time), now));
        match &self.seen {
            None => Call::Create(self.renewed(&Lease::default(), time)),
            Some(lease) => Call::Replace(self.renewed(lease, time)),
        }
    }

    /// How long this process may begin writes after it has sent a renewal.
    fn writes_for(&self) -> Duration {
        self.duration * 2 / 3
    }

    /// Takes over a Lease that was read.
    pub(super) fn set_read(&mut self, lease: Option<Lease>, now: Instant) {
        let unchanged = self.own && self.is_seen(lease.as_ref());
        let own = unchanged || lease.as_ref().is_some_and(|lease| self.has_written(lease, now));
        self.set_seen(lease, own, now);
        if !own {
            self.writes_until = None;
        }
    }

    /// Whether this process wrote the Lease, so recently that no other has held it since.
    fn has_written(&self, lease: &Lease, now: Instant) -> bool {
        let time = lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref());
        let micros = |time: &MicroTime| time.0.as_microsecond();
        holder_of(lease) == self.identity
            && self.sent.iter().any(|(written, sent)| {
                Some(micros(written)) == time.map(micros)
                    && now.saturating_duration_since(*sent) < self.writes_for()
            })
    }

    /// Takes over the Lease after a successful write that was sent at `sent`.
    pub(super) fn set_written(&mut self, lease: Lease, sent: Instant, now: Instant) {
        // A term continues while no other replica is seen as the holder. A write whose answer was lost begins none:
        // only the next one does, though the Lease names this process by then.
        self.terms += u64::from(self.writes_until.is_none());
        self.set_seen(Some(lease), true, now);
        self.writes_until = Some(sent + self.writes_for());
    }

    /// Sets `seen`. A Lease of the same version is free when it would have been: it was not renewed.
    fn set_seen(&mut self, lease: Option<Lease>, own: bool, now: Instant) {
        if !self.is_seen(lease.as_ref()) {
            self.free_at = Some(now + self.wait_after(self.seen.as_ref(), lease.as_ref(), now));
        }
        (self.seen, self.own, self.current) = (lease, own, true);
    }

    fn is_seen(&self, lease: Option<&Lease>) -> bool {
        let version = |lease: &Lease| lease.metadata.resource_version.clone();
        self.seen.as_ref().map(version) == lease.map(version)
    }

    /// Records that `seen` may be out of date: another replica wrote, or it is not known whether a write was carried
    /// out.
    pub(super) fn invalidate(&mut self) {
        self.current = false;
    }

    /// Records that time has passed: unless this process holds the Lease, it has to be read again.
    pub(super) fn refresh(&mut self) {
        self.current &= self.own && !self.resigned;
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
        let lease = self.seen.as_ref()?;
        let spec = LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(RELEASED_FOR),
            renew_time: Some(MicroTime(time)),
            ..lease.spec.clone()?
        };
        Some(Lease { metadata: lease.metadata.clone(), spec: Some(spec) })
    }
}

fn holder_of(lease: &Lease) -> &str {
    let spec = lease.spec.as_ref();
    spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

/// Whether this Lease was released by its holder, which writes no more: as [`Candidate::released`] makes it, and not in
/// an earlier term than was seen before. What an edit or a restored backup has freed tells nothing of who may still
/// write.
fn is_release(before: Option<&Lease>, lease: &Lease) -> bool {
    let of = |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.lease_transitions);
    holder_of(lease).is_empty()
        && lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds) == Some(RELEASED_FOR)
        && before.is_none_or(|before| of(before) <= of(lease))
}
