//! Each page as bytes, rendered once a sample.
//!
//! Clients share the bytes, so that many of them cost no more memory than one: 32 connections that are slow to read
//! `/metrics` of 16 signals (28 KiB) would otherwise hold 0.9 MiB. A request costs as much CPU as one that axum serves
//! from memory (bench/RESULTS.md).
//!
//! Invariant: a page is never older than the newest sample, and no value on it is stale.

use axum::body::Bytes;

use crate::collectors::UptimeFile;
use crate::render::{Node, metrics, statistics, statistics_v1};
use crate::series::{Moment, Now, Reading};
use crate::store::Store;

/// A page of samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Page {
    /// `/statistics`.
    Statistics,
    /// `/v1/statistics`.
    StatisticsV1,
    /// `/metrics`.
    Metrics,
}

impl Page {
    /// The media type.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Statistics | Self::StatisticsV1 => "application/json",
            Self::Metrics => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    fn render(self, node: &Node, readings: impl Iterator<Item = Reading>, now: Now) -> String {
        match self {
            Self::Statistics => statistics(readings),
            Self::StatisticsV1 => statistics_v1(node, readings, now),
            Self::Metrics => metrics(readings),
        }
    }
}

/// The newest rendering of each requested page, at most three.
#[derive(Debug)]
pub(super) struct Pages {
    node: Node,
    uptime: UptimeFile,
    rendered: Vec<Rendered>,
}

#[derive(Debug)]
struct Rendered {
    page: Page,
    /// The round of samples that it shows.
    round: u64,
    /// When the first value on it becomes stale.
    valid_until: Option<Moment>,
    bytes: Bytes,
}

impl Rendered {
    fn is_valid(&self, round: u64, now: Moment) -> bool {
        self.round == round && self.valid_until.is_none_or(|until| now <= until)
    }
}

impl Pages {
    /// No pages yet. The time since boot of `node` is read from `uptime` whenever `/v1/statistics` is rendered.
    pub(super) fn new(node: Node, uptime: UptimeFile) -> Self {
        Self { node, uptime, rendered: Vec::new() }
    }

    /// The page at `now`: the bytes of the last request if they are still valid.
    pub(super) fn get(&mut self, page: Page, store: &mut Store, now: Now) -> Bytes {
        let round = store.round();
        let index = self.rendered.iter().position(|rendered| rendered.page == page);
        if let Some(rendered) = index.map(|index| &self.rendered[index])
            && rendered.is_valid(round, now.boot)
        {
            return rendered.bytes.clone();
        }
        if page == Page::StatisticsV1 {
            self.node.uptime = self.uptime.read().map(|uptime| uptime.0);
        }
        let text = page.render(&self.node, store.readings(now.boot), now);
        // Boxed, the text has no spare capacity.
        let bytes = Bytes::from(text.into_boxed_str().into_boxed_bytes());
        let valid_until = store.valid_until(now.boot);
        let rendered = Rendered { page, round, valid_until, bytes: bytes.clone() };
        match index {
            Some(index) => self.rendered[index] = rendered,
            None => self.rendered.push(rendered),
        }
        bytes
    }
}
