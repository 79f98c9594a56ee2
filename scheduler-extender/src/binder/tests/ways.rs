//! Attempts, their requests and look-ups under way: anything can come between a request, what the API server makes of
//! it, and its answer.

use cluster::{BindOutcome, CallError};

use super::world::{Object, World, name, now};
use crate::binder::machine::{Action, Attempt, Event, Found, Known, apply_look_up};
use crate::binder::{BindError, Target};
use crate::view::GpuPodId;

/// An attempt under way.
#[derive(Debug, Clone)]
pub(super) struct Way {
    /// Of its last request.
    number: usize,
    pub(super) slot: usize,
    node: usize,
    attempt: Attempt,
    pub(super) waits: Waits,
}

/// What an attempt waits for.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Waits {
    Read,
    /// The pod as it was when it was read; the answer is on its way.
    Shown(Option<Shown>),
    Answer,
    /// The answer to the binding is on its way.
    Answered(BindOutcome),
    Pause,
}

/// A pod as it was read.
#[derive(Debug, Clone)]
pub(super) struct Shown(Object);

impl PartialEq for Shown {
    fn eq(&self, other: &Self) -> bool {
        (&self.0.uid, self.0.version) == (&other.0.uid, other.0.version)
    }
}

/// A binding on its way to the API server.
#[derive(Debug, Clone)]
pub(super) struct Request {
    number: usize,
    pub(super) slot: usize,
    uid: String,
    node: usize,
    version: Option<String>,
    pub(super) gpu: String,
    pub(super) units: u32,
}

impl Request {
    /// Whether the API server would carry it out for this pod of its name.
    pub(super) fn fits(&self, pod: &Object) -> bool {
        let is_version = |version: &String| *version == pod.version.to_string();
        pod.uid == self.uid && pod.node.is_none() && self.version.as_ref().is_none_or(is_version)
    }
}

/// A look-up under way; the inner `Option` is the read's answer.
#[derive(Debug, Clone)]
pub(super) struct LookUp {
    id: GpuPodId,
    found: Option<Option<Object>>,
}

impl LookUp {
    pub(super) fn new(id: GpuPodId) -> Self {
        Self { id, found: None }
    }

    pub(super) fn is_of(&self, slot: usize) -> bool {
        self.id.name == format!("p{slot}")
    }
}

fn found(pod: Option<&Object>, wanted: &GpuPodId) -> Found {
    pod.map_or(Found::Gone, |pod| Found::of(pod.facts(), wanted))
}

impl World {
    /// Bind is called.
    pub(super) fn bind(&mut self, slot: usize, node: usize) {
        let Some(pod) = self.pods.get(&slot) else { return };
        let target = Target { pod: pod.id(), node: name(node) };
        // kube-scheduler binds no pod that it sees bound.
        if pod.node.is_some() || self.bindings.running(&target).is_some() {
            return;
        }
        let attempt = Attempt::begin(target, (), &mut self.bindings);
        let way = Way { number: 0, slot, node, attempt, waits: Waits::Pause };
        self.ways.push(way);
        self.step(self.ways.len() - 1, Event::Begun);
    }

    /// As the binder carries out an attempt, until it waits for something.
    fn step(&mut self, at: usize, mut event: Event) {
        let mut way = self.ways.remove(at);
        way.waits = loop {
            let (mut bindings, leads) = (self.bindings.clone(), self.leads);
            let action = self.change(|index| {
                let (rule, beyond_units) = Default::default();
                let (bindings, now) = (&mut bindings, now());
                let is_complete = true;
                let mut known =
                    Known { index, bindings, now, is_complete, leads, rule, beyond_units };
                way.attempt.step(event, &mut known)
            });
            self.bindings = bindings;
            event = match action {
                Action::Read => break Waits::Read,
                Action::Send { .. } if !self.leads => Event::NotSent(BindError::NotLeading),
                Action::Send { version, reserved } => {
                    let (request, reservation) = *reserved.unwrap();
                    let (gpu, share) = reservation.claim.gpus().first_key_value().unwrap();
                    assert_eq!(request.peak(), share.units);
                    self.made += 1;
                    way.number = self.made;
                    self.requests.push(Request {
                        number: way.number,
                        slot: way.slot,
                        uid: way.attempt.target.pod.uid.to_string(),
                        node: way.node,
                        version,
                        gpu: gpu.to_string(),
                        units: share.units.0,
                    });
                    break Waits::Answer;
                }
                Action::Finish(outcome) => {
                    let uid = way.attempt.target.pod.uid.as_str();
                    let is_bound = self.bound.get(uid) == Some(&way.node);
                    assert!(outcome.is_err() || is_bound, "{way:?} is not bound");
                    Event::Woken { is_over: false }
                }
                Action::Wait => break Waits::Pause,
                Action::LookUp => {
                    return self.look_ups.push(LookUp::new(way.attempt.target.pod));
                }
                Action::End => return,
            };
        };
        self.ways.insert(at, way);
    }

    fn way(&self, slot: usize, is: impl Fn(&Waits) -> bool) -> Option<usize> {
        self.ways.iter().position(|way| way.slot == slot && is(&way.waits))
    }

    /// The API server carries out the oldest request under way for the pod, also where nobody waits for its answer.
    pub(super) fn carry(&mut self, slot: usize) {
        let Some(at) = self.requests.iter().position(|request| request.slot == slot) else {
            return;
        };
        let request = self.requests.remove(at);
        let outcome = match self.pods.get_mut(&slot) {
            None => BindOutcome::NotFound,
            Some(pod) if request.fits(pod) => {
                assert_eq!(pod.units, request.units, "a claim of what the pod asked for before");
                pod.node = Some(request.node);
                pod.claim = Some(request.gpu.clone());
                pod.chosen = Some(request.gpu);
                self.bound.insert(request.uid, request.node);
                self.show(slot);
                BindOutcome::Bound
            }
            Some(_) => BindOutcome::Conflict(String::new()),
        };
        self.set_answer(request.number, outcome);
    }

    /// The API server refuses the oldest request for the pod.
    pub(super) fn refuse(&mut self, slot: usize) {
        if let Some(at) = self.requests.iter().position(|request| request.slot == slot) {
            let number = self.requests.remove(at).number;
            self.set_answer(number, BindOutcome::Refused(String::new()));
        }
    }

    fn set_answer(&mut self, number: usize, outcome: BindOutcome) {
        let mut waiting = self.ways.iter_mut().filter(|way| way.waits == Waits::Answer);
        if let Some(way) = waiting.find(|way| way.number == number) {
            way.waits = Waits::Answered(outcome);
        }
    }

    /// The answer to a binding arrives, or is lost.
    pub(super) fn answer(&mut self, slot: usize, is_lost: bool) {
        let is_sent = |waits: &Waits| matches!(waits, Waits::Answer | Waits::Answered(_));
        let Some(at) = self.way(slot, is_sent) else { return };
        let outcome = match &self.ways[at].waits {
            _ if is_lost => BindOutcome::Unknown(String::new()),
            Waits::Answered(outcome) => outcome.clone(),
            _ => return,
        };
        self.step(at, Event::Answered(outcome));
    }

    /// The longest time that a request can be under way passes. Nothing changes for those whose answer is awaited.
    pub(super) fn expire(&mut self, slot: usize) {
        let ways = &self.ways;
        let is_awaited =
            |number| ways.iter().any(|way| way.number == number && way.waits == Waits::Answer);
        self.requests.retain(|request| request.slot != slot || is_awaited(request.number));
    }

    /// A pause ends.
    pub(super) fn wake(&mut self, slot: usize) {
        let Some(at) = self.way(slot, |waits| *waits == Waits::Pause) else { return };
        let Way { number, node, ref attempt, .. } = self.ways[at];
        let uid = attempt.target.pod.uid.as_str();
        let is_open = |it: &Request| it.uid == uid && it.node == node && it.number <= number;
        let is_over = !self.requests.iter().any(is_open);
        self.step(at, Event::Woken { is_over });
    }

    /// The API server answers the reads of the pod.
    pub(super) fn read(&mut self, slot: usize) {
        let pod = self.pods.get(&slot).cloned();
        for way in &mut self.ways {
            if way.slot == slot && way.waits == Waits::Read {
                way.waits = Waits::Shown(pod.clone().map(Shown));
            }
        }
        for look_up in &mut self.look_ups {
            if look_up.is_of(slot) && look_up.found.is_none() {
                self.index.begin_look_up(&look_up.id.uid);
                look_up.found = Some(pod.clone());
            }
        }
    }

    /// An answer to a read arrives, or is lost.
    pub(super) fn arrive(&mut self, slot: usize, is_lost: bool) {
        let lost = || Found::Failed(CallError::Unknown(String::new()));
        if let Some(at) = self.way(slot, |waits| matches!(waits, Waits::Shown(_))) {
            let way = &self.ways[at];
            let Waits::Shown(shown) = &way.waits else { return };
            let pod = shown.as_ref().map(|shown| &shown.0);
            let found = if is_lost { lost() } else { found(pod, &way.attempt.target.pod) };
            self.step(at, Event::Found(found));
        }
        let mut look_ups = self.look_ups.iter();
        if let Some(at) = look_ups.position(|it| it.is_of(slot) && it.found.is_some()) {
            let LookUp { id, found: pod } = self.look_ups.remove(at);
            let found = if is_lost { lost() } else { found(pod.flatten().as_ref(), &id) };
            if !self.change(|index| apply_look_up(&id, found, index, now())) {
                self.look_ups.push(LookUp::new(id));
            }
        }
    }

    /// All that is under way for the pod arrives, and pauses end.
    pub(super) fn finish(&mut self, slot: usize) {
        for _ in 0..20 {
            self.carry(slot);
            self.answer(slot, false);
            self.read(slot);
            for _ in 0..=self.ways.len() {
                self.arrive(slot, false);
            }
            self.expire(slot);
            for _ in 0..self.ways.len() {
                self.wake(slot);
            }
        }
    }

    /// The attempts and requests as text, without numbers that only grow.
    pub(super) fn ways_and_requests(&self) -> String {
        let mut text = String::new();
        for Way { number, slot, node, attempt, waits, .. } in &self.ways {
            let requests = self.requests.iter().filter(|request| request.number == *number);
            let requests: Vec<_> = requests.map(|it| (&it.version, it.units, it.node)).collect();
            let is_last = attempt.is_last_in_doubt(&self.bindings);
            let Attempt { phase, is_second_look, .. } = attempt;
            text += &format!(
                "{slot} {node} {phase:?} {is_second_look} {waits:?} {requests:?} {is_last};"
            );
        }
        let order: Vec<_> = self.requests.iter().map(|it| (it.slot, &it.version)).collect();
        text + &format!("{order:?}")
    }
}
