//! The answers as bytes, made once a sample: a scrape costs a copy of a pointer.
//!
//! Invariant: a page is never older than the newest sample, and no value on it is stale.

use axum::body::Bytes;

use crate::collectors::UptimeFile;
use crate::render::{Exposition, Node, statistics, statistics_v1};
use crate::series::{Moment, Now, Reading};
use crate::store::Store;

/// Everything that can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Page {
    /// `/statistics`.
    Statistics,
    /// `/v1/statistics`.
    StatisticsV1,
    /// `/metrics`.
    Metrics(Exposition),
}

impl Page {
    /// The media type.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Statistics | Self::StatisticsV1 => "application/json",
            Self::Metrics(format) => format.content_type(),
        }
    }

    fn render(self, node: &Node, readings: impl Iterator<Item = Reading>, now: Now) -> String {
        match self {
            Self::Statistics => statistics(readings),
            Self::StatisticsV1 => statistics_v1(node, readings, now),
            Self::Metrics(format) => format.render(readings),
        }
    }
}

/// The pages that somebody asked for.
#[derive(Debug)]
pub struct Pages {
    node: Node,
    uptime: UptimeFile,
    made: Vec<Made>,
}

#[derive(Debug)]
struct Made {
    page: Page,
    round: u64,
    right_until: Option<Moment>,
    bytes: Bytes,
}

impl Made {
    fn holds(&self, round: u64, now: Moment) -> bool {
        self.round == round && self.right_until.is_none_or(|until| now <= until)
    }
}

impl Pages {
    /// No pages yet. The time since boot of `node` is read from `uptime` whenever a page is made.
    #[must_use]
    pub fn new(node: Node, uptime: UptimeFile) -> Self {
        Self { node, uptime, made: Vec::new() }
    }

    /// The page as it is right now.
    pub fn get(&mut self, page: Page, store: &mut Store, now: Now) -> Bytes {
        let round = store.round();
        let known = self.made.iter().position(|made| made.page == page);
        if let Some(made) = known.map(|place| &self.made[place])
            && made.holds(round, now.boot)
        {
            return made.bytes.clone();
        }
        if page == Page::StatisticsV1 {
            self.node.uptime = self.uptime.read().map(|uptime| uptime.0);
        }
        let text = page.render(&self.node, store.readings(now.boot), now);
        let bytes = Bytes::from(text.into_boxed_str().into_boxed_bytes());
        let made = Made { page, round, right_until: store.right_until(now.boot), bytes };
        let bytes = made.bytes.clone();
        match known {
            Some(place) => self.made[place] = made,
            None => self.made.push(made),
        }
        bytes
    }
}
