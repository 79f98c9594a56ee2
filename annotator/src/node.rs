//! One node: where its exporter is, what is due, and what its annotations should say of its cards.

use jiff::{SignedDuration, Timestamp};
use placement::gpu::{CardShare, NodeShare};
use placement::reading::ReadingCodec;

use crate::due::Dues;
use crate::poll::{Endpoint, NoEndpoint};
use crate::retry::Retry;

/// A change of the cards alone waits this long for others: every write of a Node makes
/// kube-scheduler try again each pod that it could not place.
const GATHER: SignedDuration = SignedDuration::from_secs(10);

/// An unchanged share goes along with a load patch when it is this old, so that readers of its time
/// see that somebody still looks after it.
const RENEW: SignedDuration = SignedDuration::from_mins(10);

/// From the end of a job to the next one of the same node: as short as the shortest period, so
/// that no node is ever written in a tight circle, whatever its annotations say.
const REST: SignedDuration = SignedDuration::from_secs(1);

/// Whether a node's exporter answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Voice {
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
    pub(crate) endpoint: Result<Endpoint, NoEndpoint>,
    pub(crate) ready: Option<bool>,
    pub(crate) dues: Dues,
    pub(crate) voice: Voice,
    pub(crate) polls: Retry,
    pub(crate) patches: Retry,
    pub(crate) share: Share,
    /// The job in flight.
    pub(crate) job: Option<u64>,
    /// No job begins before.
    pub(crate) rested_at: Option<Timestamp>,
    /// Where the node stands in the fleet's queue.
    pub(crate) queued: Option<Timestamp>,
}

impl NodeState {
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
    pub(crate) fn poll_at(&self, now: Timestamp) -> Option<Timestamp> {
        let due = self.dues.next(now)?;
        Some(due.max(self.polls.not_before()).max(self.patches.not_before()))
    }

    /// When the share should be written even without a poll.
    pub(crate) fn share_at(&self) -> Option<Timestamp> {
        Some(self.share.due?.max(self.patches.not_before()))
    }

    /// When there is something to do next.
    pub(crate) fn wake_at(&self, now: Timestamp) -> Option<Timestamp> {
        let next = self.poll_at(now).into_iter().chain(self.share_at()).min()?;
        Some(self.rested_at.map_or(next, |rested| next.max(rested)))
    }

    /// A job has ended.
    pub(crate) fn rest(&mut self, now: Timestamp) {
        self.job = None;
        self.rested_at = now.checked_add(REST).ok();
    }
}

/// The `gpu-share` annotation: as it is on the node, and as it should be.
#[derive(Debug, Clone, Default)]
pub(crate) struct Share {
    written: Option<NodeShare>,
    /// `None` where that is not known yet.
    wanted: Option<Vec<CardShare>>,
    /// When the change has to be written.
    due: Option<Timestamp>,
}

/// What to write: the share, or that there is none any more.
pub(crate) type ShareWrite = Option<NodeShare>;

impl Share {
    /// As the node's annotation says it is. What cannot be read is written anew.
    pub(crate) fn on_node(annotation: Option<&str>) -> Self {
        let unreadable = || NodeShare { time: Timestamp::MIN, cards: Vec::new() };
        let read = |text| NodeShare::from_json(text).unwrap_or_else(|_| unreadable());
        Self { written: annotation.map(read), ..Self::default() }
    }

    /// As it should be from now on.
    pub(crate) fn want(&mut self, cards: Option<Vec<CardShare>>, now: Timestamp) {
        self.wanted = cards.or_else(|| self.wanted.take());
        self.due = match self.differs() {
            true => self.due.or_else(|| now.checked_add(GATHER).ok()),
            false => None,
        };
    }

    fn differs(&self) -> bool {
        let written = self.written.as_ref().map_or(&[][..], |share| &share.cards);
        self.wanted.as_ref().is_some_and(|wanted| *wanted != *written || self.leftover())
    }

    /// An annotation on a node without cards.
    fn leftover(&self) -> bool {
        self.written.is_some() && self.wanted.as_ref().is_some_and(Vec::is_empty)
    }

    fn stale(&self, now: Timestamp) -> bool {
        let old = |share: &NodeShare| now.duration_since(share.time) >= RENEW;
        self.written.as_ref().is_some_and(old) && self.wanted.is_some()
    }

    /// What a patch at `now` should say; `None` where nothing. A patch that is written anyway takes
    /// along what is not due yet.
    pub(crate) fn to_write(&self, now: Timestamp, anyway: bool) -> Option<ShareWrite> {
        let due = self.due.is_some_and(|due| due <= now);
        let along = anyway && (self.differs() || self.stale(now));
        let cards = self.wanted.clone().filter(|_| due || along)?;
        Some((!cards.is_empty()).then_some(NodeShare { time: now, cards }))
    }

    /// The node's annotation says this now.
    pub(crate) fn wrote(&mut self, share: ShareWrite, now: Timestamp) {
        self.written = share;
        self.due = None;
        self.want(None, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use placement::units::Units;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn cards(allocated: u32) -> Option<Vec<CardShare>> {
        let (uuid, units, allocated) = ("GPU-0".into(), Units(16), Units(allocated));
        Some(vec![CardShare { uuid, units, allocated, used: None, utilisation: None }])
    }

    #[test]
    fn changes_within_ten_seconds_are_one_write() {
        let mut share = Share::default();
        share.want(cards(1), at(100));
        share.want(cards(2), at(105));
        assert_eq!(share.due, Some(at(110)));
        assert_eq!(share.to_write(at(109), false), None);
        let write = share.to_write(at(110), false).unwrap();
        assert_eq!(write.as_ref().unwrap().cards, cards(2).unwrap());
        share.wrote(write, at(110));
        assert_eq!((share.due, share.to_write(at(111), true)), (None, None));
    }

    #[test]
    fn a_patch_written_anyway_takes_a_change_along() {
        let mut share = Share::default();
        share.want(cards(1), at(100));
        assert!(share.to_write(at(101), true).is_some());
    }

    #[test]
    fn a_change_that_was_taken_back_is_no_write() {
        let mut share = Share::default();
        share.want(cards(1), at(100));
        share.wrote(share.to_write(at(110), false).unwrap(), at(110));
        share.want(cards(2), at(120));
        share.want(cards(1), at(121));
        assert_eq!(share.to_write(at(200), false), None);
    }

    #[test]
    fn a_change_during_the_write_is_written_afterwards() {
        let mut share = Share::default();
        share.want(cards(1), at(100));
        let write = share.to_write(at(110), false).unwrap();
        share.want(cards(2), at(111));
        share.wrote(write, at(112));
        assert_eq!(share.due, Some(at(122)));
    }

    #[test]
    fn what_is_not_known_is_not_written() {
        let mut share = Share::on_node(None);
        share.want(None, at(100));
        assert_eq!(share.to_write(at(1000), true), None);
    }

    #[test]
    fn a_node_that_has_lost_its_cards_loses_the_annotation() {
        let text = NodeShare { time: at(100), cards: cards(1).unwrap() }.to_json();
        let mut share = Share::on_node(Some(&text));
        share.want(Some(Vec::new()), at(200));
        assert_eq!(share.to_write(at(210), false), Some(None));
        let mut never_had_any = Share::on_node(None);
        never_had_any.want(Some(Vec::new()), at(200));
        assert_eq!(never_had_any.to_write(at(210), true), None);
    }

    #[test]
    fn a_restart_writes_nothing_and_an_old_share_is_renewed_along_with_a_load_patch() {
        let text = NodeShare { time: at(100), cards: cards(1).unwrap() }.to_json();
        let mut share = Share::on_node(Some(&text));
        share.want(cards(1), at(101));
        assert_eq!((share.due, share.to_write(at(101), true)), (None, None));
        assert!(share.to_write(at(700), true).is_some());
        assert_eq!(share.to_write(at(700), false), None);
    }

    #[test]
    fn an_unreadable_annotation_is_replaced() {
        let mut share = Share::on_node(Some("{"));
        share.want(cards(1), at(100));
        assert!(share.due.is_some());
    }
}
