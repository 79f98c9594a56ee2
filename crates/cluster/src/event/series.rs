//! The events that were written in the last minutes, so that an equal one counts up the object that is there.
//!
//! Invariants: events are equal only where everything that people read of them is, the note included; at most [`MOST`]
//! are known, of which each namespace has a share.

use jiff::{SignedDuration, Timestamp};
use placement::shares::SharedTable;

use super::{EventKind, EventText};

/// An equal event counts up the object if it comes within this time of the last one. Other clients of Kubernetes use
/// the same time.
const LASTS: SignedDuration = SignedDuration::from_mins(6);

/// Known events at most, of some 2 kB each. The next event that equals a dropped one is a new object.
const MOST: usize = 1024;

/// The object that an event is about, of the API's version `v1`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct About {
    pub(super) kind: &'static str,
    /// `None` for a Node.
    pub(super) namespace: Option<String>,
    pub(super) name: String,
    pub(super) uid: Option<String>,
}

/// What tells events apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct EventContent {
    pub(super) about: About,
    pub(super) kind: EventKind,
    pub(super) text: EventText,
}

/// The object of equal events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Series {
    /// The name of the event's object.
    pub(super) name: String,
    /// How many there were.
    pub(super) count: i32,
    /// When the last one was written.
    pub(super) at: Timestamp,
}

/// The events of the last minutes.
#[derive(Debug)]
pub(super) struct RecentEvents {
    series: SharedTable<EventContent, Series>,
    /// The last name's time, in nanoseconds.
    named_at: i128,
}

impl Default for RecentEvents {
    fn default() -> Self {
        Self { series: SharedTable::new(MOST), named_at: 0 }
    }
}

impl RecentEvents {
    /// The series of an event that is written at `now`, if an equal one was written in the last minutes.
    pub(super) fn next(&self, content: &EventContent, now: Timestamp) -> Option<Series> {
        let last = self.series.get(content)?;
        if now.duration_since(last.at) >= LASTS {
            return None;
        }
        Some(Series { name: last.name.clone(), count: last.count.saturating_add(1), at: now })
    }

    /// The series of a new object. Its name is that of the object that the event is about, and a time that no other
    /// name of this process has.
    pub(super) fn first(&mut self, content: &EventContent, now: Timestamp) -> Series {
        self.named_at = now.as_nanosecond().max(self.named_at + 1);
        Series { name: format!("{}.{:x}", content.about.name, self.named_at), count: 1, at: now }
    }

    /// An event was written.
    pub(super) fn record(&mut self, content: EventContent, series: Series) {
        self.series.retain(|_, known| series.at.duration_since(known.at) < LASTS);
        // Events about Nodes have the share of one namespace.
        let namespace = content.about.namespace.clone().unwrap_or_default();
        self.series.insert(&namespace, content, series);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(note: &str) -> EventContent {
        EventContent {
            about: About { kind: "Node", namespace: None, name: "a".to_owned(), uid: None },
            kind: EventKind::Warning,
            text: EventText { reason: "R", action: "A", note: note.to_owned() },
        }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).unwrap()
    }

    #[test]
    fn an_equal_event_counts_up_for_six_minutes_after_the_last_one() {
        let mut recent = RecentEvents::default();
        let first = recent.first(&content("one"), at(0));
        recent.record(content("one"), first.clone());
        let second = recent.next(&content("one"), at(359)).unwrap();
        assert_eq!(second, Series { name: first.name, count: 2, at: at(359) });
        recent.record(content("one"), second);
        assert_eq!(recent.next(&content("one"), at(359 + 359)).unwrap().count, 3);
        assert_eq!(recent.next(&content("one"), at(359 + 360)), None);
    }

    #[test]
    fn an_event_that_differs_in_one_field_is_another() {
        let mut recent = RecentEvents::default();
        let first = recent.first(&content("one"), at(0));
        recent.record(content("one"), first);
        let mut others = vec![content("two"); 6];
        others[1] = EventContent { kind: EventKind::Normal, ..content("one") };
        others[2] = content("one");
        others[2].text.reason = "S";
        others[3] = content("one");
        others[3].about.name = "b".to_owned();
        others[4] = content("one");
        others[4].about.uid = Some("u".to_owned());
        others[5] = content("one");
        others[5].about.namespace = Some("n".to_owned());
        for other in others {
            assert_eq!(recent.next(&other, at(1)), None, "{other:?}");
        }
    }

    #[test]
    fn two_objects_never_have_one_name() {
        let mut recent = RecentEvents::default();
        let names =
            [at(0), at(0), at(-5), at(7)].map(|now| recent.first(&content("one"), now).name);
        let apart: std::collections::BTreeSet<&String> = names.iter().collect();
        assert_eq!(apart.len(), 4, "{names:?}");
    }

    #[test]
    fn events_of_one_namespace_displace_no_others() {
        let of = |namespace: &str, number: usize| {
            let mut content = content(&number.to_string());
            content.about.namespace = Some(namespace.to_owned());
            content
        };
        let mut recent = RecentEvents::default();
        for content in (0..10).map(|number| of("small", number)) {
            let series = recent.first(&content, at(0));
            recent.record(content, series);
        }
        for content in (0..2 * MOST).map(|number| of("large", number)) {
            let series = recent.first(&content, at(1));
            recent.record(content, series);
        }
        let known = (0..10).filter(|number| recent.next(&of("small", *number), at(2)).is_some());
        assert_eq!(known.count(), 10);
    }

    #[test]
    fn the_oldest_of_too_many_events_is_forgotten() {
        let mut recent = RecentEvents::default();
        for number in 0..=MOST {
            let content = content(&number.to_string());
            let series = recent.first(&content, at(0) + SignedDuration::from_millis(number as i64));
            recent.record(content, series);
        }
        assert_eq!(recent.series.len(), MOST);
        assert_eq!(recent.next(&content("0"), at(2)), None);
        assert_eq!(recent.next(&content("1"), at(2)).unwrap().count, 2);
        let late = recent.first(&content("late"), at(600));
        recent.record(content("late"), late);
        assert_eq!(recent.series.len(), 1, "what is older than six minutes goes");
    }
}
