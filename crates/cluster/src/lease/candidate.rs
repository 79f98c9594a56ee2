//! What one process knows of the Lease, and what it does next. Without I/O: times are parameters.

use std::net::SocketAddr;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tokio::time::Instant;

use super::Holder;

/// The Lease's annotation with the address at which its holder answers other replicas: `IP:PORT`.
pub(super) const ADDRESS: &str = "plimsoll.dev/address";

/// The next call.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Call {
    Read,
    Create(Lease),
    Replace(Lease),
    /// Another holds it.
    Nothing,
}

/// What one process knows of the Lease. Without I/O: times are parameters.
#[derive(Debug)]
pub(super) struct Candidate {
    identity: String,
    duration: Duration,
    /// As last read or written, and when this version of it was seen first.
    seen: Option<(Lease, Instant)>,
    /// Whether a write may build on `seen`.
    current: bool,
    /// Until when another may still write that held it when it was deleted.
    deleted_until: Option<Instant>,
    /// Until when this process may write.
    pub(super) until: Option<Instant>,
    /// How often it has taken the Lease.
    pub(super) terms: u64,
    /// Written into the Lease.
    address: Option<SocketAddr>,
    /// It takes and renews nothing any more.
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
            until: None,
            terms: 0,
            address: None,
            resigned: false,
        }
    }

    /// The same, which writes this address into the Lease.
    pub(super) fn at(self, address: Option<SocketAddr>) -> Self {
        Self { address, ..self }
    }

    /// Between two renewals, or between two looks; also the most that a call may take.
    pub(super) fn period(&self) -> Duration {
        self.duration / 5
    }

    /// Who holds it, as last seen; empty where none does.
    pub(super) fn holder(&self) -> &str {
        let spec = self.seen.as_ref().and_then(|(lease, _)| lease.spec.as_ref());
        spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
    }

    pub(super) fn known_holder(&self) -> Option<Holder> {
        let identity = self.holder().to_owned();
        let (lease, _) = self.seen.as_ref().filter(|_| !identity.is_empty())?;
        let address = lease.metadata.annotations.as_ref().and_then(|all| all.get(ADDRESS));
        Some(Holder { identity, address: address.and_then(|text| text.parse().ok()) })
    }

    pub(super) fn is_mine(&self) -> bool {
        self.holder() == self.identity
    }

    pub(super) fn is_free(&self, now: Instant) -> bool {
        let Some((lease, since)) = &self.seen else {
            return self.deleted_until.is_none_or(|until| now >= until);
        };
        self.holder().is_empty() || now.saturating_duration_since(*since) >= self.lasts(lease)
    }

    /// For how long after each renewal the holder of this Lease may write.
    fn lasts(&self, lease: &Lease) -> Duration {
        let promised = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
        let promised = promised.and_then(|seconds| u64::try_from(seconds).ok());
        promised.map_or(self.duration, Duration::from_secs)
    }

    /// What to do next. `time` goes into the Lease for people to read; nothing is decided by it.
    pub(super) fn next(&self, now: Instant, time: Timestamp) -> Call {
        match &self.seen {
            _ if !self.current => Call::Read,
            _ if self.resigned => Call::Nothing,
            None if self.is_free(now) => Call::Create(self.renewed(&Lease::default(), time)),
            Some((lease, _)) if self.is_mine() || self.is_free(now) => {
                Call::Replace(self.renewed(lease, time))
            }
            _ => Call::Nothing,
        }
    }

    /// The Lease was read.
    pub(super) fn read(&mut self, lease: Option<Lease>, now: Instant) {
        if let (None, Some((before, _))) = (&lease, &self.seen)
            && !self.is_mine()
            && !self.is_free(now)
        {
            // Who held it when it was deleted goes on until its next renewal fails.
            self.deleted_until = Some(now + self.lasts(before));
        }
        self.set_seen(lease, now);
        if !self.is_mine() {
            self.until = None;
        }
    }

    /// A write succeeded that was sent at `sent`.
    pub(super) fn wrote(&mut self, lease: Lease, sent: Instant, now: Instant) {
        // One that was this process's at the version before is its still: no other has written in between.
        self.terms += u64::from(!self.is_mine());
        self.set_seen(Some(lease), now);
        self.until = Some(sent + self.duration * 2 / 3);
    }

    /// A Lease of the same version keeps its time: it was not renewed.
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

    /// What was seen may be out of date: another wrote, or it is not known whether a write was carried out.
    pub(super) fn unsure(&mut self) {
        self.current = false;
    }

    /// Some time has passed. Only the holder knows that nothing has changed.
    pub(super) fn refresh(&mut self) {
        self.current &= self.is_mine() && !self.resigned;
    }

    /// Takes and renews nothing from now on.
    pub(super) fn resign(&mut self) {
        (self.resigned, self.until, self.current) = (true, None, false);
    }

    /// `lease` held by this process from now on.
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

    /// The Lease that nobody holds; `None` where this process does not hold it.
    pub(super) fn released(&self, time: Timestamp) -> Option<Lease> {
        let (lease, _) = self.seen.as_ref().filter(|_| self.is_mine())?;
        let spec = LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            renew_time: Some(MicroTime(time)),
            ..lease.spec.clone()?
        };
        Some(Lease { metadata: lease.metadata.clone(), spec: Some(spec) })
    }
}
