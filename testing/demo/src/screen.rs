//! The picture: 80 columns by 24 lines, in the terminal's own colours; with more room, more pods, and
//! their reasons in more words.

use ratatui::Frame;
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::Paragraph;

use crate::bars::{self, BAD, FAINT, GOOD, PLAIN, STRONG, WAITING};
use crate::checker::Tally;
use crate::story::{NodeLine, Place, PodLine, Scene};

/// Columns that are drawn at least.
pub(crate) const WIDTH: u16 = 80;
/// From this many on, there is room for whole sentences.
const WIDE: usize = 120;
/// Lines that are drawn where there are no more.
pub(crate) const HEIGHT: u16 = 24;
/// Lines that are neither nodes nor pods: title, caption, two headings, two of footer.
const OTHER_LINES: usize = 6;

/// What a frame shows.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Picture {
    /// Since the start.
    pub(crate) seconds: u64,
    pub(crate) caption: String,
    pub(crate) scene: Scene,
    pub(crate) tally: Tally,
}

/// Draws a frame.
pub(crate) fn draw(frame: &mut Frame<'_>, picture: &Picture) {
    let area = frame.area();
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    let columns = Columns::fitting(width);
    frame.render_widget(Paragraph::new(Text::from(lines(picture, columns, height))), area);
}

/// Widths of a pod's columns: name, place, reason, default.
#[derive(Debug, Clone, Copy)]
struct Columns {
    name: usize,
    place: usize,
    why: usize,
    default: usize,
}

impl Columns {
    fn fitting(width: usize) -> Self {
        match width {
            ..WIDE => Self { name: 10, place: 15, why: 29, default: 24 },
            _ => Self { name: 10, place: 17, why: 68, default: 23 },
        }
    }

    fn all(self) -> usize {
        2 + self.name + self.place + self.why + self.default
    }

    fn is_wide(self) -> bool {
        self.all() > usize::from(WIDTH)
    }
}

fn lines(picture: &Picture, columns: Columns, height: usize) -> Vec<Line<'static>> {
    let mut lines = vec![
        title(picture, columns),
        Line::styled(picture.caption.clone(), STRONG),
        Line::styled(
            format!(
                "{:<10}{:<12}{:<4}{:<4}{}",
                "node", "load", "hot", "pod", "cards: a pod's letter once a GiB, · free"
            ),
            FAINT,
        ),
    ];
    lines.extend(picture.scene.nodes.iter().map(node_line));
    lines.push(pods_heading(columns));
    let room = height.saturating_sub(OTHER_LINES + picture.scene.nodes.len());
    let shown = newest(&picture.scene.pods, room);
    lines.extend(shown.map(|pod| pod_line(pod, columns)));
    while lines.len() + 2 < height {
        lines.push(Line::default());
    }
    lines.truncate(height.saturating_sub(2));
    lines.push(counts(&picture.tally));
    lines.push(invariants(&picture.tally));
    lines
}

/// The name, what the marks mean, and the time.
fn title(picture: &Picture, columns: Columns) -> Line<'static> {
    let right = format!("{} s", picture.seconds);
    let name = "Plimsoll";
    let legend = "  load: ! over limit, M by memory, ? silent   hot: bound of late";
    let used = name.len() + legend.len() + right.len();
    Line::from(vec![
        Span::styled(name, STRONG),
        Span::styled(legend, FAINT),
        Span::raw(" ".repeat(columns.all().saturating_sub(used).max(1))),
        Span::styled(right, FAINT),
    ])
}

fn pods_heading(columns: Columns) -> Line<'static> {
    let Columns { name, place, why, .. } = columns;
    let reason = if columns.is_wide() {
        "why: points by load and by how well the card fits"
    } else {
        "why: of 10 points; who's out"
    };
    let name = name + 2;
    Line::styled(
        format!("{:<name$}{:<place$}{reason:<why$}{}", "pod", "where", "kube-scheduler alone"),
        FAINT,
    )
}

/// Pods that wait are always shown, last; before them the newest others, in the order of their creation.
fn newest(pods: &[PodLine], room: usize) -> impl Iterator<Item = &PodLine> {
    let waits = |pod: &&PodLine| !matches!(pod.place, Place::On { .. });
    let waiting: Vec<&PodLine> = pods.iter().filter(waits).collect();
    let others: Vec<&PodLine> = pods.iter().filter(|pod| !waits(pod)).collect();
    let waiting_shown = waiting.len().min(room);
    let skip = others.len().saturating_sub(room - waiting_shown);
    others.into_iter().skip(skip).chain(waiting.into_iter().take(waiting_shown))
}

fn node_line(node: &NodeLine) -> Line<'static> {
    let mut spans = vec![Span::raw(format!("{:<10}", node.name))];
    spans.extend(bars::load(node));
    spans.push(Span::raw(format!("{:<4}{:<4}", node.hot, node.pods)));
    for card in &node.cards {
        spans.extend(bars::card(card, node.plugin_away));
        spans.push(Span::raw(" "));
    }
    if node.plugin_away {
        spans.push(Span::styled("no plugin", WAITING));
    }
    Line::from(spans)
}

fn pod_line(pod: &PodLine, columns: Columns) -> Line<'static> {
    let letter = pod.letter;
    let name_width = columns.name;
    let name = Span::raw(format!("{letter} {:<name_width$}", cut(&pod.name, name_width - 1)));
    let amount = if pod.units > 0 { format!("{} GiB", pod.units) } else { String::new() };
    let rest = columns.all() - columns.name - 2;
    match &pod.place {
        Place::Waits(reason) => {
            let line = format!("waits: {}", brief(reason));
            Line::from(vec![name, Span::styled(cut(&line, rest), WAITING)])
        }
        Place::Failed(reason) => Line::from(vec![name, Span::styled(cut(reason, rest), BAD)]),
        Place::On { node, card, running } => {
            let card = card.map_or(String::new(), |card| format!("/{card}"));
            let place = format!("{node}{card}{} {amount}", if *running { "" } else { " …" });
            let (why, default) = motive(pod, columns);
            let Columns { place: place_width, why: why_width, default: default_width, .. } =
                columns;
            Line::from(vec![
                name,
                Span::raw(format!("{:<place_width$}", cut(&place, place_width - 1))),
                Span::raw(format!("{:<why_width$}", cut(&why, why_width - 1))),
                Span::styled(cut(&default, default_width), FAINT),
            ])
        }
    }
}

fn motive(pod: &PodLine, columns: Columns) -> (String, String) {
    let Some((motive, default)) = &pod.motive else {
        return ("bound by somebody else".to_owned(), String::new());
    };
    let why = if columns.is_wide() { motive.full() } else { motive.brief() };
    (why, default.words())
}

/// The part of kube-scheduler's sentence that says most: what is about cards, if anything is.
fn brief(reason: &str) -> &str {
    let (_, reasons) = reason.split_once(": ").unwrap_or(("", reason));
    reasons.find("Insufficient GPU Memory").map_or(reasons, |at| &reasons[at..])
}

fn cut(text: &str, width: usize) -> String {
    match text.chars().count() > width {
        true => text.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

fn counts(tally: &Tally) -> Line<'static> {
    let Tally { pods, bound, running, pending, .. } = tally;
    Line::raw(format!("pods {pods}   bound {bound}   ran {running}   pending {pending}"))
}

fn invariants(tally: &Tally) -> Line<'static> {
    let parts = [
        ("MiB double-booked", tally.double_booked_mib),
        ("wrong cards", tally.card_mismatches as u64),
        ("pods on overloaded nodes", tally.hot_node_placements as u64),
    ];
    let mut spans = vec![Span::styled("checked: ", PLAIN)];
    for (what, count) in parts {
        let style = if count == 0 { GOOD } else { BAD };
        spans.push(Span::styled(format!("{count} {what}   "), style));
    }
    Line::from(spans)
}

#[cfg(test)]
#[path = "screen_tests.rs"]
mod tests;
