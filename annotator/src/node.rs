//! One node: whether its exporter answers, what is due, and what becomes of its jobs.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use placement::reading::ReadingCodec;
use placement::units::MetricName;

use crate::due::Dues;
use crate::endpoint::{Endpoint, NoEndpoint};
use crate::job::{Ask, Heard, Report, SharePlan, Turn};
use crate::retry::Retry;
use crate::share::Share;
use crate::statistics::{Form, Lack};

/// From the end of a job to the next one of the same node: as short as the shortest period, so
/// that no node is ever written in a tight circle, whatever its annotations say.
const REST: SignedDuration = SignedDuration::from_secs(1);

/// An exporter that knows the older form alone is asked for the other again after so long: it may
/// have been replaced by a newer one that nobody saw stop.
const UPGRADED: SignedDuration = SignedDuration::from_mins(15);

/// Whether a node's exporter answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Voice {
    /// It was not asked yet.
    Unheard,
    /// It does.
    Answers,
    /// It does not, for this reason.
    Silent(&'static str),
}

/// All that is kept of one node.
#[derive(Debug, Clone)]
pub(crate) struct NodeState {
    pub(crate) dues: Dues,
    pub(crate) share: Share,
    endpoint: Result<Endpoint, NoEndpoint>,
    ready: Option<bool>,
    voice: Voice,
    /// In which form the exporter answered last.
    form: Option<Form>,
    /// It is asked for the older form until then.
    flat_until: Option<Timestamp>,
    /// Why metrics are held back.
    held_back: BTreeMap<MetricName, &'static str>,
    polls: Retry,
    patches: Retry,
    /// No job begins before.
    rested_at: Option<Timestamp>,
    /// The job in flight.
    pub(crate) job: Option<u64>,
    /// Where the node stands in the fleet's queue.
    pub(crate) queued: Option<Timestamp>,
}

impl NodeState {
    /// A node that nothing is known of yet.
    pub(crate) fn new(dues: Dues, share: Share, endpoint: Result<Endpoint, NoEndpoint>) -> Self {
        Self {
            dues,
            share,
            endpoint,
            ready: None,
            voice: Voice::Unheard,
            form: None,
            flat_until: None,
            held_back: BTreeMap::new(),
            polls: Retry::default(),
            patches: Retry::default(),
            rested_at: None,
            job: None,
            queued: None,
        }
    }

    /// Where the exporter is now, and whether the kubelet is well. A change of either may be the end
    /// of whatever kept the exporter silent: it is asked at once.
    pub(crate) fn stands(&mut self, endpoint: Result<Endpoint, NoEndpoint>, ready: Option<bool>) {
        if self.endpoint != endpoint || self.ready != ready {
            self.polls.succeeded();
            self.flat_until = None;
        }
        self.endpoint = endpoint;
        self.ready = ready;
    }

    /// Other metrics are due from now on.
    pub(crate) fn set_dues(&mut self, dues: Dues) {
        self.held_back.retain(|held, _| dues.metrics().any(|metric| metric == held));
        self.dues = dues;
    }

    /// The clock was set back: every time that was noted to wait for may be far ahead.
    pub(crate) fn clock_set_back(&mut self) {
        self.polls.succeeded();
        self.patches.succeeded();
        self.rested_at = None;
        self.flat_until = None;
        self.dues.clock_set_back();
        self.share.clock_set_back();
    }

    /// Takes over the times that the node's annotations carry.
    pub(crate) fn observe<'a>(
        &mut self,
        codec: &ReadingCodec,
        annotation: impl Fn(&str) -> Option<&'a str>,
    ) {
        let metrics: Vec<_> = self.dues.metrics().cloned().collect();
        for metric in metrics {
            // What does not parse is as good as never written, and is overwritten.
            let reading = annotation(metric.as_str()).and_then(|text| codec.decode(text).ok());
            if let Some(reading) = reading {
                self.dues.observed(&metric, reading.at);
            }
        }
    }

    /// When the exporter should be asked next.
    fn poll_at(&self, now: Timestamp) -> Option<Timestamp> {
        let due = self.dues.next(now)?;
        Some(due.max(self.polls.not_before()).max(self.patches.not_before()))
    }

    /// When the share should be written even without a poll.
    fn share_at(&self) -> Option<Timestamp> {
        Some(self.share.due()?.max(self.patches.not_before()))
    }

    /// When there is something to do next.
    pub(crate) fn wake_at(&self, now: Timestamp) -> Option<Timestamp> {
        let next = self.poll_at(now).into_iter().chain(self.share_at()).min()?;
        Some(self.rested_at.map_or(next, |rested| next.max(rested)))
    }

    /// What is to be done at `now`: ask the exporter, write the share.
    pub(crate) fn task(&self, now: Timestamp) -> (Option<Ask>, Option<SharePlan>) {
        let due = self.poll_at(now).is_some_and(|at| at <= now);
        let flat = self.flat_until.is_some_and(|until| now < until);
        let form = if flat { Form::Flat } else { Form::Detailed };
        let (endpoint, wanted) = (&self.endpoint, || self.dues.wanted(now));
        let ask = due.then(|| Ask { endpoint: endpoint.clone(), form, wanted: wanted() });
        (ask, self.share.to_write(now, due))
    }

    /// Takes over what came of the job in flight. Tells what is news.
    pub(crate) fn finish(&mut self, report: Report, now: Timestamp) -> Vec<Turn> {
        self.job = None;
        self.rested_at = now.checked_add(REST).ok();
        let turns = self.hear(&report, now).into_iter().chain(self.note(&report, now)).collect();
        if let (Some(Ok(())), Some(share)) = (report.patch, report.share) {
            self.share.wrote(share, now);
        }
        if let Some(Ok(heard)) = report.poll {
            self.share.measured(heard.cards, report.at);
        }
        turns
    }

    pub(crate) fn is_silent(&self) -> bool {
        matches!(self.voice, Voice::Silent(_))
    }

    /// How many metrics are held back.
    pub(crate) fn held_back(&self) -> usize {
        self.held_back.len()
    }

    /// What became of asking the exporter.
    fn hear(&mut self, report: &Report, now: Timestamp) -> Vec<Turn> {
        let before = self.voice;
        match &report.poll {
            None => Vec::new(),
            Some(Ok(heard)) => {
                self.voice = Voice::Answers;
                self.polls.succeeded();
                self.tick_off(report, &heard.given);
                let answers = matches!(before, Voice::Silent(_)).then_some(Turn::Answers);
                let speaks = self.speaks(report, heard.form, now);
                answers.into_iter().chain(speaks).chain(self.hold_back(report, heard)).collect()
            }
            Some(Err(error)) => {
                self.voice = Voice::Silent(error.reason());
                self.polls.failed(now);
                self.flat_until = None;
                let turned = before != self.voice;
                turned.then(|| Turn::Silent(error.clone())).into_iter().collect()
            }
        }
    }

    /// Takes over in which form the exporter answered.
    fn speaks(&mut self, report: &Report, form: Form, now: Timestamp) -> Option<Turn> {
        let asked = report.job.ask.as_ref().map(|ask| ask.form);
        match form {
            Form::Detailed => self.flat_until = None,
            Form::Flat if asked == Some(Form::Detailed) => {
                self.flat_until = now.checked_add(UPGRADED).ok();
            }
            Form::Flat => {}
        }
        let before = self.form.replace(form).unwrap_or(Form::Detailed);
        (before != form).then_some(Turn::Speaks(form))
    }

    fn tick_off(&mut self, report: &Report, given: &[MetricName]) {
        let wanted = report.job.ask.iter().flat_map(|ask| &ask.wanted);
        let patched = matches!(report.patch, Some(Ok(())));
        for metric in wanted {
            if !given.contains(metric) {
                self.dues.absent(metric, report.at);
            } else if patched {
                self.dues.written(metric, report.at);
            }
        }
    }

    /// Takes over which metrics were held back, and which no longer are. One that is not in the
    /// answer at all stays as it was.
    fn hold_back(&mut self, report: &Report, heard: &Heard) -> Vec<Turn> {
        let mut turns = Vec::new();
        for (metric, lack) in &heard.held_back {
            if let Lack::Coverage { half_in: Some(wait), .. } = lack {
                self.dues.held_back(metric, report.at, *wait);
            }
            let before = self.held_back.insert(metric.clone(), lack.reason());
            if before != Some(lack.reason()) {
                turns.push(Turn::HeldBack(metric.clone(), *lack));
            }
        }
        let released = heard.given.iter().filter(|metric| self.held_back.remove(*metric).is_some());
        turns.extend(released.cloned().map(Turn::Released));
        turns
    }

    /// What became of the patch.
    fn note(&mut self, report: &Report, now: Timestamp) -> Option<Turn> {
        let fine = self.patches == Retry::default();
        match report.patch.as_ref()? {
            Ok(()) => {
                self.patches.succeeded();
                (!fine).then_some(Turn::Written)
            }
            Err(error) => {
                self.patches.failed(now);
                fine.then(|| Turn::Unwritten(error.clone()))
            }
        }
    }
}
