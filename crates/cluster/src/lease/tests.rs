use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicI64, Ordering};

use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use proptest::prelude::*;

use super::candidate::ADDRESS;
use super::*;

const DURATION: Duration = Duration::from_secs(15);

fn candidate(identity: &str) -> Candidate {
    Candidate::new(identity.to_owned(), DURATION)
}

/// A time that no other write has.
fn time() -> Timestamp {
    static WRITES: AtomicI64 = AtomicI64::new(0);
    Timestamp::from_microsecond(WRITES.fetch_add(1, Ordering::Relaxed)).unwrap()
}

fn after(start: Instant, seconds: u64) -> Instant {
    start + Duration::from_secs(seconds)
}

/// The API server: it knows versions and no time.
#[derive(Default)]
struct Server {
    lease: Option<Lease>,
    version: u64,
}

impl Server {
    /// Carries out a write; `None` is a conflict.
    fn write(&mut self, call: &Call) -> Option<Lease> {
        let (lease, fits) = match call {
            Call::Create(lease) => (lease.clone(), self.lease.is_none()),
            Call::Replace(lease) => {
                let found = self.lease.as_ref().map(|lease| &lease.metadata.resource_version);
                (lease.clone(), found == Some(&lease.metadata.resource_version))
            }
            Call::Read | Call::Nothing => return None,
        };
        if !fits {
            return None;
        }
        Some(self.put(lease))
    }

    fn put(&mut self, mut lease: Lease) -> Lease {
        self.version += 1;
        lease.metadata.resource_version = Some(self.version.to_string());
        self.lease = Some(lease.clone());
        lease
    }

    /// As `kubectl edit` does.
    fn edit(&mut self, edit: &Edit) {
        let Some(mut lease) = self.lease.clone() else { return };
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity.clone_from(&edit.holder);
        spec.lease_duration_seconds = edit.duration;
        if edit.renewed {
            spec.renew_time = Some(MicroTime(time()));
        }
        self.put(lease);
    }
}

#[derive(Debug, Clone, Default)]
struct Edit {
    holder: Option<String>,
    duration: Option<i32>,
    /// Whether the time of the last renewal changes, too.
    renewed: bool,
}

/// What an undisturbed candidate does at `now`; whether it holds the lease then.
fn step(candidate: &mut Candidate, server: &mut Server, now: Instant) -> bool {
    candidate.refresh();
    loop {
        match candidate.next_call(now, time()) {
            Call::Nothing => break,
            Call::Read => candidate.set_read(server.lease.clone(), now),
            write => {
                if let Some(lease) = server.write(&write) {
                    candidate.set_written(lease, now, now);
                    break;
                }
                candidate.invalidate();
            }
        }
    }
    candidate.writes_until.is_some_and(|until| until > now)
}

fn spec(server: &Server) -> LeaseSpec {
    server.lease.clone().unwrap().spec.unwrap()
}

fn two_candidates() -> (Server, Instant, Candidate, Candidate) {
    (Server::default(), Instant::now(), candidate("first"), candidate("second"))
}

#[test]
fn the_first_takes_it_and_the_second_waits_for_as_long_as_it_is_renewed() {
    let (mut server, start, mut first, mut second) = two_candidates();
    for seconds in (0..60).step_by(3) {
        assert!(step(&mut first, &mut server, after(start, seconds)));
        assert!(!step(&mut second, &mut server, after(start, seconds)));
    }
    assert_eq!(spec(&server).lease_transitions, Some(0));
}

#[test]
fn a_lease_that_is_not_renewed_is_taken_once_its_duration_is_over() {
    let (mut server, start, mut first, mut second) = two_candidates();
    step(&mut first, &mut server, start);
    assert!(!step(&mut second, &mut server, after(start, 1)));
    assert!(!step(&mut second, &mut server, after(start, 15)));
    assert!(step(&mut second, &mut server, after(start, 16)));
    assert!(!step(&mut first, &mut server, after(start, 16)));
    assert_eq!(first.writes_until, None);
    assert_eq!(spec(&server).lease_transitions, Some(1));
}

#[test]
fn a_holder_may_write_for_two_thirds_of_the_lease_after_it_sent_the_renewal() {
    let start = Instant::now();
    let mut first = candidate("first");
    first.set_written(Lease::default(), start, after(start, 3));
    assert_eq!(first.writes_until, Some(after(start, 10)));
}

#[test]
fn a_released_lease_is_taken_at_once() {
    let (mut server, start, mut first, mut second) = two_candidates();
    step(&mut first, &mut server, start);
    step(&mut second, &mut server, start);
    let released = first.released(time()).unwrap();
    server.write(&Call::Replace(released)).unwrap();
    assert!(step(&mut second, &mut server, after(start, 1)));
    assert!(second.released(time()).is_some());
    assert_eq!(candidate("third").released(time()), None);
}

#[test]
fn a_lease_that_is_deleted_is_taken_once_its_last_holder_may_not_write_any_more() {
    let (mut server, start, mut first, mut second) = two_candidates();
    assert!(step(&mut first, &mut server, start));
    assert!(!step(&mut second, &mut server, start));
    server.lease = None;
    for seconds in [1, 2, 15] {
        assert!(!step(&mut second, &mut server, after(start, seconds)));
    }
    assert!(first.writes_until.is_some_and(|until| until < after(start, 15)));
    assert!(step(&mut second, &mut server, after(start, 16)));
    // The holder itself makes it again at once.
    server.lease = None;
    assert!(step(&mut second, &mut server, after(start, 17)));
}

#[test]
fn a_term_begins_after_another_holder_and_not_at_a_late_renewal() {
    let (mut server, start, mut first, mut second) = two_candidates();
    step(&mut first, &mut server, start);
    step(&mut second, &mut server, start);
    // Late, but before the other looks.
    assert!(step(&mut first, &mut server, after(start, 20)));
    assert_eq!((first.terms, second.terms), (1, 0));
    step(&mut second, &mut server, after(start, 21));
    assert!(step(&mut second, &mut server, after(start, 36)));
    let released = second.released(time()).unwrap();
    server.write(&Call::Replace(released)).unwrap();
    assert!(step(&mut first, &mut server, after(start, 37)));
    assert_eq!((first.terms, second.terms), (2, 1));
}

#[test]
fn a_term_begins_too_where_the_answer_to_the_write_that_took_the_lease_was_lost() {
    let (mut server, start, mut first, mut second) = two_candidates();
    step(&mut first, &mut server, start);
    for (seconds, wanted) in [(20, (1, 1)), (60, (2, 1)), (100, (2, 2))] {
        let now = after(start, seconds);
        let (next, other) = match wanted {
            (2, 1) => (&mut first, &mut second),
            _ => (&mut second, &mut first),
        };
        assert!(!step(next, &mut server, now));
        let expired = after(start, seconds + 16);
        next.refresh();
        next.set_read(server.lease.clone(), expired);
        assert!(server.write(&next.next_call(expired, time())).is_some());
        next.invalidate();
        assert!(step(next, &mut server, after(start, seconds + 17)));
        assert!(!step(other, &mut server, after(start, seconds + 17)));
        assert_eq!((first.terms, second.terms), wanted);
        // A lost renewal begins none.
        let next = if wanted == (2, 1) { &mut first } else { &mut second };
        server.write(&next.next_call(after(start, seconds + 18), time())).unwrap();
        next.invalidate();
        assert!(step(next, &mut server, after(start, seconds + 19)));
        assert_eq!((first.terms, second.terms), wanted);
    }
}

/// The second is named in the Lease, or it is freed, by an edit or a restored backup.
#[test]
fn a_lease_that_is_edited_is_taken_once_its_last_holder_may_not_write_any_more() {
    for holder in ["second", "", "third"] {
        for duration in [None, Some(15), Some(2), Some(-1)] {
            let mut server = Server::default();
            let start = Instant::now();
            let mut first = candidate("first");
            let mut second = candidate("second");
            assert!(step(&mut first, &mut server, start));
            assert!(!step(&mut second, &mut server, start));
            server.edit(&Edit { holder: Some(holder.to_owned()), duration, renewed: true });
            assert!(!step(&mut second, &mut server, after(start, 1)));
            assert!(!step(&mut second, &mut server, after(start, 15)));
            assert!(first.writes_until.is_some_and(|until| until < after(start, 15)));
            assert!(step(&mut second, &mut server, after(start, 16)), "{holder} {duration:?}");
            assert!(!step(&mut first, &mut server, after(start, 16)));
        }
    }
}

/// The Lease names the replica that leads: others may have held it since that was written.
#[test]
fn a_term_ends_where_the_lease_is_an_earlier_one_of_its_holder() {
    let mut server = Server::default();
    let start = Instant::now();
    let mut first = candidate("first");
    step(&mut first, &mut server, start);
    let backup = server.lease.clone().unwrap();
    for seconds in (3..30).step_by(3) {
        assert!(step(&mut first, &mut server, after(start, seconds)));
    }
    server.put(backup);
    assert!(!step(&mut first, &mut server, after(start, 30)));
    assert!(!step(&mut first, &mut server, after(start, 44)));
    assert!(step(&mut first, &mut server, after(start, 45)));
    assert_eq!(first.terms, 2);
}

#[test]
fn a_lease_that_is_deleted_after_another_took_it_is_not_made_again_at_once() {
    let (mut server, start, mut first, mut second) = two_candidates();
    step(&mut first, &mut server, start);
    step(&mut second, &mut server, start);
    assert!(step(&mut second, &mut server, after(start, 16)));
    server.lease = None;
    // It has not seen that the second holds the Lease.
    assert!(!step(&mut first, &mut server, after(start, 17)));
    assert!(second.writes_until.is_some_and(|until| until > after(start, 17)));
}

#[test]
fn a_term_goes_on_where_another_program_changed_something_else_in_the_lease() {
    let mut server = Server::default();
    let start = Instant::now();
    let mut first = candidate("first");
    step(&mut first, &mut server, start);
    let mut lease = server.lease.clone().unwrap();
    lease.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
    server.put(lease);
    assert!(step(&mut first, &mut server, after(start, 3)));
    assert_eq!(first.terms, 1);
}

#[test]
fn the_lease_tells_where_its_holder_answers() {
    let mut server = Server::default();
    let start = Instant::now();
    let address: SocketAddr = "[fd00::1]:19100".parse().unwrap();
    let mut first = candidate("first").with_address(Some(address));
    let mut second = candidate("second");
    step(&mut first, &mut server, start);
    step(&mut second, &mut server, start);
    let free_at = after(start, 15);
    let holder = Holder { identity: "first".to_owned(), address: Some(address), free_at };
    assert_eq!(second.known_holder(), Some(holder));
    for text in ["", "elsewhere:80", "10.0.0.1"] {
        let lease = server.lease.as_mut().unwrap();
        let annotations = lease.metadata.annotations.as_mut().unwrap();
        annotations.insert(ADDRESS.to_owned(), text.to_owned());
        step(&mut second, &mut server, start);
        assert_eq!(second.known_holder().unwrap().address, None, "{text}");
    }
}

#[test]
fn a_holder_is_lost_once_its_lease_was_not_renewed_for_as_long_as_it_lasts() {
    let mut server = Server::default();
    let mut first = candidate("first");
    let mut second = candidate("second");
    second.resign();
    let before = Instant::now().checked_sub(Duration::from_secs(20)).unwrap();
    step(&mut first, &mut server, before);
    step(&mut second, &mut server, before);
    assert!(second.known_holder().unwrap().is_lost());
    // It is read again, and has not changed.
    step(&mut second, &mut server, Instant::now());
    assert!(second.known_holder().unwrap().is_lost());
    step(&mut first, &mut server, Instant::now());
    step(&mut second, &mut server, Instant::now());
    assert!(!second.known_holder().unwrap().is_lost());
}

#[test]
fn one_that_has_resigned_takes_nothing_and_sees_who_does() {
    let (mut server, start, mut first, mut second) = two_candidates();
    step(&mut first, &mut server, start);
    first.resign();
    assert!(!step(&mut first, &mut server, after(start, 60)));
    step(&mut second, &mut server, after(start, 1));
    assert!(step(&mut second, &mut server, after(start, 16)));
    assert!(!step(&mut first, &mut server, after(start, 60)));
    assert_eq!(first.holder(), "second");
}

#[test]
fn the_holders_own_duration_counts_and_not_that_of_the_waiting_one() {
    let mut server = Server::default();
    let start = Instant::now();
    let mut first = Candidate::new("first".to_owned(), Duration::from_secs(60));
    let mut second = candidate("second");
    step(&mut first, &mut server, start);
    assert!(!step(&mut second, &mut server, start));
    assert!(!step(&mut second, &mut server, after(start, 59)));
    assert!(step(&mut second, &mut server, after(start, 60)));
}

/// What happens next to one of two candidates.
enum Happens {
    Wakes,
    Arrives {
        id: usize,
        sent: Instant,
        call: Call,
    },
    Answered {
        id: usize,
        sent: Instant,
        answer: Answer,
    },
    TimesOut {
        id: usize,
    },
    /// Someone else edits the Lease, or deletes it.
    Edited(Option<Edit>),
}

enum Answer {
    Read(Option<Lease>),
    Wrote(Lease),
    Conflict,
}

/// Two candidates whose calls take as long as they like, arrive after their client gave up, or are lost.
struct World {
    server: Server,
    candidates: [Candidate; 2],
    /// The call that each waits for.
    pending: [usize; 2],
    queue: BinaryHeap<Reverse<(Instant, usize, usize)>>,
    events: Vec<Option<Happens>>,
    delays: Vec<(u64, u64)>,
    /// Whether the Lease was deleted.
    deleted: bool,
}

impl World {
    fn push(&mut self, at: Instant, who: usize, happens: Happens) {
        self.queue.push(Reverse((at, self.events.len(), who)));
        self.events.push(Some(happens));
    }

    /// The milliseconds of the way there and of the way back.
    fn delay(&self, id: usize) -> (Duration, Duration) {
        let (there, back) = self.delays[id % self.delays.len()];
        (Duration::from_millis(there), Duration::from_millis(back))
    }

    fn act(&mut self, who: usize, now: Instant) {
        let call = self.candidates[who].next_call(now, time());
        let period = self.candidates[who].period();
        if call == Call::Nothing {
            return self.push(now + period, who, Happens::Wakes);
        }
        let id = self.events.len();
        self.pending[who] = id;
        self.push(now + self.delay(id).0, who, Happens::Arrives { id, sent: now, call });
        self.push(now + period, who, Happens::TimesOut { id });
    }

    fn happen(&mut self, who: usize, now: Instant, happens: Happens) {
        let period = self.candidates[who].period();
        match happens {
            Happens::Wakes => {
                self.candidates[who].refresh();
                self.act(who, now);
            }
            Happens::Arrives { id, sent, call } => {
                let answer = match self.server.write(&call) {
                    _ if call == Call::Read => Answer::Read(self.server.lease.clone()),
                    Some(lease) => Answer::Wrote(lease),
                    None => Answer::Conflict,
                };
                self.push(now + self.delay(id).1, who, Happens::Answered { id, sent, answer });
            }
            Happens::TimesOut { id } if self.pending[who] == id => {
                self.pending[who] = usize::MAX;
                self.candidates[who].invalidate();
                self.push(now + period / 3, who, Happens::Wakes);
            }
            Happens::Answered { id, sent, answer } if self.pending[who] == id => {
                self.pending[who] = usize::MAX;
                match answer {
                    Answer::Read(lease) => self.candidates[who].set_read(lease, now),
                    Answer::Conflict => self.candidates[who].invalidate(),
                    Answer::Wrote(lease) => {
                        self.candidates[who].set_written(lease, sent, now);
                        return self.push(now + period, who, Happens::Wakes);
                    }
                }
                self.act(who, now);
            }
            Happens::Edited(Some(edit)) => self.server.edit(&edit),
            // One that has never seen a Lease takes one that is missing: there may be no other replica. And that it was
            // there in between cannot be seen where it is deleted twice.
            Happens::Edited(None)
                if !self.deleted && self.candidates.iter().all(Candidate::has_seen_one) =>
            {
                (self.server.lease, self.deleted) = (None, true);
            }
            Happens::Edited(None) => {}
            Happens::TimesOut { .. } | Happens::Answered { .. } => {}
        }
    }
}

/// What others may make of the Lease; an empty holder with a second to last is what its holder makes of it.
fn edit() -> impl Strategy<Value = Option<Edit>> {
    let holders = prop::sample::select(vec![None, Some("first"), Some("second"), Some("third")]);
    let durations = prop::sample::select(vec![None, Some(2), Some(15), Some(i32::MAX), Some(-5)]);
    let edit = (holders, durations, any::<bool>()).prop_map(|(holder, duration, renewed)| Edit {
        holder: holder.map(str::to_owned),
        duration,
        renewed,
    });
    prop::option::weighted(0.8, edit)
}

proptest! {
    #[test]
    fn two_never_hold_it_at_once_whatever_their_calls_take_and_others_edit(
        delays in prop::collection::vec((0u64..20_000, 0u64..4_000), 1..40),
        edits in prop::collection::vec((2_000u64..200_000, edit()), 0..6),
    ) {
        let start = Instant::now();
        let mut world = World {
            server: Server::default(),
            candidates: [candidate("first"), candidate("second")],
            pending: [usize::MAX; 2],
            queue: BinaryHeap::new(),
            events: Vec::new(),
            // Half of the calls are quick.
            delays: delays.into_iter().flat_map(|slow| [slow, (5, 5)]).collect(),
            deleted: false,
        };
        world.push(start, 0, Happens::Wakes);
        world.push(after(start, 1), 1, Happens::Wakes);
        for (at, edit) in edits {
            world.push(start + Duration::from_millis(at), 0, Happens::Edited(edit));
        }
        let (mut last, mut terms) = (None, [0; 2]);
        for _ in 0..400 {
            let Some(Reverse((now, event, who))) = world.queue.pop() else { break };
            let happens = world.events[event].take().unwrap();
            world.happen(who, now, happens);
            let holds = |who: usize| world.candidates[who].writes_until.is_some_and(|until| until > now);
            prop_assert!(!(holds(0) && holds(1)));
            // Each time that it goes to another, a term begins.
            if let Some(holder) = (0..2).find(|who| holds(*who)) {
                let term = world.candidates[holder].terms;
                prop_assert!(last == Some(holder) || term > terms[holder]);
                (last, terms[holder]) = (Some(holder), term);
            }
        }
    }
}

#[test]
fn calls_that_fail_for_longer_than_the_lease_lasts_are_logged_once_a_minute() {
    let start = Instant::now();
    let lease = Duration::from_secs(15);
    let at = |seconds| start + Duration::from_secs(seconds);
    let failing = Failing { since: start, logged_at: None };
    assert!(!failing.is_worth_a_line(lease, at(14)) && failing.is_worth_a_line(lease, at(15)));
    let logged = Failing { logged_at: Some(at(15)), ..failing };
    assert!(!logged.is_worth_a_line(lease, at(74)) && logged.is_worth_a_line(lease, at(75)));
}
