//! The `gpu-share` annotation of one node: as it is, as it should be, and when to write it.

use jiff::{SignedDuration, Timestamp};
use placement::gpu::{CardShare, NodeShare};
use placement::units::{CardId, Units};

use crate::job::{SharePlan, ShareWrite};
use crate::measured::Measurements;

/// A change of the cards alone waits this long for others: every write of a Node makes
/// kube-scheduler try again each pod that it could not place.
const GATHER: SignedDuration = SignedDuration::from_secs(10);

/// An unchanged share goes along with a load patch when it is this old, so that readers of its time
/// see that somebody still looks after it.
const RENEW: SignedDuration = SignedDuration::from_mins(10);

/// So long a measurement is told along with shares that are written without a new one: no longer
/// than crane's readers honour a hot value.
const MEASURED: SignedDuration = SignedDuration::from_mins(5);

/// The `gpu-share` annotation: as it is on the node, and as it should be.
#[derive(Debug, Clone, Default)]
pub(crate) struct Share {
    written: Option<NodeShare>,
    /// `None` where that is not known yet.
    wanted: Option<Vec<CardShare>>,
    /// When the change has to be written.
    due: Option<Timestamp>,
    /// What an exporter measured last, and when.
    measured: Option<(Timestamp, Measurements)>,
}

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

    /// When the change has to be written.
    pub(crate) fn due(&self) -> Option<Timestamp> {
        self.due
    }

    /// Times that were noted may be far ahead: a change is written at once.
    pub(crate) fn clock_set_back(&mut self) {
        self.due = self.due.map(|_| Timestamp::MIN);
    }

    fn differs(&self) -> bool {
        let written = self.written.as_ref().map_or(&[][..], |share| &share.cards);
        let wanted = |wanted: &Vec<CardShare>| !allocated_alike(wanted, written) || self.leftover();
        self.wanted.as_ref().is_some_and(wanted)
    }

    /// An annotation on a node without cards.
    fn leftover(&self) -> bool {
        self.written.is_some() && self.wanted.as_ref().is_some_and(Vec::is_empty)
    }

    fn stale(&self, now: Timestamp) -> bool {
        let old = |share: &NodeShare| now.duration_since(share.time) >= RENEW;
        self.written.as_ref().is_some_and(old) && self.wanted.is_some()
    }

    /// What a patch at `now` should say. A patch that is written anyway takes along what is not due
    /// yet, and what its exporter may have measured anew.
    pub(crate) fn to_write(&self, now: Timestamp, anyway: bool) -> Option<SharePlan> {
        let due = self.due.is_some_and(|due| due <= now);
        let needed = due || anyway && (self.differs() || self.stale(now));
        let cards = self.wanted.as_ref().filter(|_| due || anyway)?;
        let fresh = |(at, _): &&(Timestamp, _)| now.duration_since(*at) <= MEASURED;
        let cards = match self.measured.as_ref().filter(fresh) {
            Some((_, measured)) => {
                cards.iter().cloned().map(|card| measured.add_to(card)).collect()
            }
            None => cards.clone(),
        };
        Some(SharePlan { cards, needed })
    }

    /// An exporter measured this.
    pub(crate) fn measured(&mut self, cards: Measurements, at: Timestamp) {
        if !cards.is_empty() {
            self.measured = Some((at, cards));
        }
    }

    /// The node's annotation says this now.
    pub(crate) fn wrote(&mut self, share: ShareWrite, now: Timestamp) {
        self.written = share;
        self.due = None;
        self.want(None, now);
    }
}

/// Whether the same is allocated of the same cards, whatever was measured of them.
fn allocated_alike(these: &[CardShare], those: &[CardShare]) -> bool {
    fn of(card: &CardShare) -> (&CardId, Units, Units) {
        (&card.uuid, card.units, card.allocated)
    }
    these.iter().map(of).eq(those.iter().map(of))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn cards(allocated: u32) -> Option<Vec<CardShare>> {
        let (uuid, units, allocated) = ("GPU-0".into(), Units(16), Units(allocated));
        Some(vec![CardShare { uuid, units, allocated, used: None, utilisation: None }])
    }

    /// What a patch at `now` says where nothing was measured.
    fn unmeasured(share: &Share, now: Timestamp, anyway: bool) -> Option<ShareWrite> {
        share.to_write(now, anyway)?.write(&Measurements::default(), now)
    }

    /// The same, written.
    fn written(share: &mut Share, now: Timestamp, anyway: bool) -> ShareWrite {
        let write = unmeasured(share, now, anyway).unwrap();
        share.wrote(write.clone(), now);
        write
    }

    fn busy(percent: f64) -> Measurements {
        let mut cards = Measurements::default();
        cards.take("gpu_0_usage_active", "GPU-0", percent);
        cards
    }

    fn utilisation(write: Option<ShareWrite>) -> Option<f64> {
        write.unwrap().unwrap().cards[0].utilisation
    }

    #[test]
    fn changes_within_ten_seconds_are_one_write() {
        let mut share = Share::default();
        share.want(cards(1), at(100));
        share.want(cards(2), at(105));
        assert_eq!(share.due, Some(at(110)));
        assert_eq!(share.to_write(at(109), false), None);
        let write = written(&mut share, at(110), false);
        assert_eq!(write.unwrap().cards, cards(2).unwrap());
        assert_eq!((share.due, unmeasured(&share, at(111), true)), (None, None));
    }

    #[test]
    fn a_patch_written_anyway_takes_a_change_along() {
        let mut share = Share::default();
        share.want(cards(1), at(100));
        assert!(unmeasured(&share, at(101), true).is_some());
    }

    #[test]
    fn a_change_that_was_taken_back_is_no_write() {
        let mut share = Share::default();
        share.want(cards(1), at(100));
        written(&mut share, at(110), false);
        share.want(cards(2), at(120));
        share.want(cards(1), at(121));
        assert_eq!(unmeasured(&share, at(200), false), None);
    }

    #[test]
    fn a_change_during_the_write_is_written_afterwards() {
        let mut share = Share::default();
        share.want(cards(1), at(100));
        let write = unmeasured(&share, at(110), false).unwrap();
        share.want(cards(2), at(111));
        share.wrote(write, at(112));
        assert_eq!(share.due, Some(at(122)));
    }

    #[test]
    fn what_is_not_known_is_not_written() {
        let mut share = Share::on_node(None);
        share.want(None, at(100));
        assert_eq!(unmeasured(&share, at(1000), true), None);
    }

    #[test]
    fn a_node_that_has_lost_its_cards_loses_the_annotation() {
        let text = NodeShare { time: at(100), cards: cards(1).unwrap() }.to_json();
        let mut share = Share::on_node(Some(&text));
        share.want(Some(Vec::new()), at(200));
        assert_eq!(unmeasured(&share, at(210), false), Some(None));
        let mut never_had_any = Share::on_node(None);
        never_had_any.want(Some(Vec::new()), at(200));
        assert_eq!(unmeasured(&never_had_any, at(210), true), None);
    }

    #[test]
    fn a_restart_writes_nothing_and_an_old_share_is_renewed_along_with_a_load_patch() {
        let text = NodeShare { time: at(100), cards: cards(1).unwrap() }.to_json();
        let mut share = Share::on_node(Some(&text));
        share.want(cards(1), at(101));
        assert_eq!((share.due, unmeasured(&share, at(101), true)), (None, None));
        assert!(unmeasured(&share, at(700), true).is_some());
        assert_eq!(unmeasured(&share, at(700), false), None);
    }

    #[test]
    fn an_unreadable_annotation_is_replaced() {
        let mut share = Share::on_node(Some("{"));
        share.want(cards(1), at(100));
        assert!(share.due.is_some());
    }

    #[test]
    fn what_is_measured_goes_along_with_load_patches_and_is_no_reason_for_one() {
        let mut share = Share::default();
        share.want(cards(1), at(100));
        written(&mut share, at(110), false);
        assert_eq!(share.to_write(at(120), false), None);
        let along = share.to_write(at(120), true).unwrap().write(&busy(60.0), at(120));
        assert_eq!(utilisation(along.clone()), Some(0.6));
        share.wrote(along.unwrap(), at(120));
        share.measured(busy(60.0), at(120));
        assert_eq!((share.due, unmeasured(&share, at(121), true)), (None, None));
    }

    #[test]
    fn a_measurement_is_told_for_five_minutes_with_changes_of_what_is_allocated() {
        let mut share = Share::default();
        share.want(cards(1), at(100));
        share.measured(busy(60.0), at(100));
        share.measured(Measurements::default(), at(105));
        assert_eq!(utilisation(unmeasured(&share, at(400), false)), Some(0.6));
        assert_eq!(utilisation(unmeasured(&share, at(401), false)), None);
    }

    #[test]
    fn a_node_without_cards_gets_no_share_from_a_measurement() {
        let mut share = Share::on_node(None);
        share.want(Some(Vec::new()), at(100));
        assert_eq!(share.to_write(at(120), true).unwrap().write(&busy(60.0), at(120)), None);
    }
}
