//! One frame of the table, in the terminal's own colours: 80 columns by 24 lines at least. A larger terminal shows more
//! pods, and their reasons in whole words.

use ratatui::Frame;
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::Paragraph;

use super::bars::{self, BAD, BOLD, DIM, GOOD, PLAIN, WAITING};
use super::snapshot::{NodeRow, Place, PodRow, Snapshot};
use crate::checker::Counts;
use crate::model::policy::Policy;

/// Smallest width, in columns.
pub(crate) const WIDTH: u16 = 80;
/// Width from which on reasons are shown in their long form.
const WIDE: usize = 120;
/// Smallest height, in lines.
pub(crate) const HEIGHT: u16 = 24;
/// Lines beside nodes and pods: title, caption, two headings, two of footer.
const OTHER_LINES: usize = 6;

/// Draws a frame.
pub(crate) fn draw(frame: &mut Frame<'_>, snapshot: &Snapshot) {
    let area = frame.area();
    let width = usize::from(area.width);
    let height = usize::from(area.height);
    let columns = Columns::for_width(width);
    frame.render_widget(Paragraph::new(Text::from(lines(snapshot, columns, height))), area);
}

/// Widths of a pod row's columns, in cells. Its letter takes two more.
#[derive(Debug, Clone, Copy)]
struct Columns {
    name: usize,
    place: usize,
    reason: usize,
    baseline: usize,
}

impl Columns {
    fn for_width(width: usize) -> Self {
        match width {
            ..WIDE => Self { name: 10, place: 15, reason: 29, baseline: 24 },
            _ => Self { name: 9, place: 15, reason: 71, baseline: 23 },
        }
    }

    fn sum(self) -> usize {
        2 + self.name + self.place + self.reason + self.baseline
    }

    fn is_wide(self) -> bool {
        self.sum() > usize::from(WIDTH)
    }
}

fn lines(snapshot: &Snapshot, columns: Columns, height: usize) -> Vec<Line<'static>> {
    let mut lines = vec![
        title_line(snapshot, columns),
        Line::styled(snapshot.caption.clone(), BOLD),
        nodes_heading(snapshot.policy),
    ];
    lines.extend(snapshot.nodes.iter().map(|node| node_line(node, snapshot.policy)));
    lines.push(pods_heading(columns));
    let room = height.saturating_sub(OTHER_LINES + snapshot.nodes.len());
    let shown = shown_pods(&snapshot.pods, room);
    lines.extend(shown.map(|pod| pod_line(pod, columns)));
    while lines.len() + 2 < height {
        lines.push(Line::default());
    }
    lines.truncate(height.saturating_sub(2));
    lines.push(counts_line(&snapshot.counts, &snapshot.page));
    lines.push(invariants_line(&snapshot.counts));
    lines
}

/// The title line: name, legend of the marks, and seconds since the start.
fn title_line(snapshot: &Snapshot, columns: Columns) -> Line<'static> {
    let right = format!("{} s", snapshot.seconds);
    let name = "Plimsoll";
    let column = match snapshot.policy {
        Policy::Shipped => "req: CPU requested, %",
        Policy::Crane => "hot: bound of late",
    };
    let legend = format!("  load: ! over limit, M by memory, ? silent   {column}");
    let used = name.len() + legend.len() + right.len();
    Line::from(vec![
        Span::styled(name, BOLD),
        Span::styled(legend, DIM),
        Span::raw(" ".repeat(columns.sum().saturating_sub(used).max(1))),
        Span::styled(right, DIM),
    ])
}

fn nodes_heading(policy: Policy) -> Line<'static> {
    let column = match policy {
        Policy::Shipped => "req",
        Policy::Crane => "hot",
    };
    let cards = "cards: a pod's letter once a GiB, · free";
    let heading = format!("{:<10}{:<12}{column:<4}{:<4}{cards}", "node", "load", "pod");
    Line::styled(heading, DIM)
}

fn pods_heading(columns: Columns) -> Line<'static> {
    let Columns { name, place, reason, .. } = columns;
    let heading = if columns.is_wide() {
        "why: points by load and by how well the card fits"
    } else {
        "why: points; who's out"
    };
    let name = name + 2;
    Line::styled(
        format!("{:<name$}{:<place$}{heading:<reason$}{}", "pod", "where", "kube-scheduler alone"),
        DIM,
    )
}

/// The pods to show in so many lines: waiting ones first of all, at the end; before them the newest others in the order
/// of their creation.
fn shown_pods(pods: &[PodRow], room: usize) -> impl Iterator<Item = &PodRow> {
    let waiting: Vec<&PodRow> = pods.iter().filter(|pod| waits(pod)).collect();
    let others: Vec<&PodRow> = pods.iter().filter(|pod| !waits(pod)).collect();
    let waiting_shown = waiting.len().min(room);
    let skip = others.len().saturating_sub(room - waiting_shown);
    others.into_iter().skip(skip).chain(waiting.into_iter().take(waiting_shown))
}

fn waits(pod: &PodRow) -> bool {
    !matches!(pod.place, Place::On { .. })
}

fn node_line(node: &NodeRow, policy: Policy) -> Line<'static> {
    let column = match policy {
        Policy::Shipped => node.requested,
        Policy::Crane => node.hot_value,
    };
    let mut spans = vec![Span::raw(format!("{:<10}", node.name))];
    spans.extend(bars::load(node));
    spans.push(Span::raw(format!("{column:<4}{:<4}", node.pods)));
    for card in &node.cards {
        spans.extend(bars::card(card, node.plugin_missing));
        spans.push(Span::raw(" "));
    }
    if node.plugin_missing {
        spans.push(Span::styled("no plugin", WAITING));
    }
    Line::from(spans)
}

fn pod_line(pod: &PodRow, columns: Columns) -> Line<'static> {
    let letter = pod.letter;
    let name_width = columns.name;
    let name = Span::raw(format!("{letter} {:<name_width$}", cut(&pod.name, name_width - 1)));
    let amount = if pod.units > 0 { format!("{} GiB", pod.units) } else { String::new() };
    let rest = columns.sum() - columns.name - 2;
    match &pod.place {
        Place::Waiting(reason) => {
            let line = waiting_text(pod, reason, &amount);
            Line::from(vec![name, Span::styled(cut(&line, rest), WAITING)])
        }
        Place::Failed(reason) => Line::from(vec![name, Span::styled(cut(reason, rest), BAD)]),
        Place::On { node, card, running } => {
            let card = card.map_or(String::new(), |card| format!("/{card}"));
            let place = format!("{node}{card}{} {amount}", if *running { "" } else { " …" });
            let (why, baseline) = reason_texts(pod, columns);
            let Columns {
                place: place_width, reason: reason_width, baseline: baseline_width, ..
            } = columns;
            Line::from(vec![
                name,
                Span::raw(format!("{:<place_width$}", cut(&place, place_width - 1))),
                Span::raw(format!("{:<reason_width$}", cut(&why, reason_width - 1))),
                Span::styled(cut(&baseline, baseline_width), DIM),
            ])
        }
    }
}

/// Why the pod is where it is, and what kube-scheduler would have done.
fn reason_texts(pod: &PodRow, columns: Columns) -> (String, String) {
    let Some((reason, baseline)) = &pod.reason else {
        return ("not by the scheduler".to_owned(), String::new());
    };
    let reason = if columns.is_wide() { reason.long() } else { reason.short() };
    (reason, baseline.text())
}

/// Why the pod waits: what the extender explains, where it has rejected nodes, otherwise kube-scheduler's message.
fn waiting_text(pod: &PodRow, message: &str, amount: &str) -> String {
    match pod.rejections.long() {
        rejected if rejected.is_empty() => {
            let (_, reasons) = message.split_once(": ").unwrap_or(("", message));
            format!("waits: {reasons}")
        }
        rejected if amount.is_empty() => format!("waits; out: {rejected}"),
        rejected => format!("waits for {amount}; out: {rejected}"),
    }
}

/// The text in so many characters at most.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() > width {
        text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
    } else {
        text.to_owned()
    }
}

fn counts_line(counts: &Counts, page: &str) -> Line<'static> {
    let Counts { pods, bound, running, pending, .. } = counts;
    let counts = format!("pods {pods}   bound {bound}   ran {running}   pending {pending}   ");
    Line::from(vec![Span::raw(counts), Span::styled(page.to_owned(), DIM)])
}

fn invariants_line(counts: &Counts) -> Line<'static> {
    let parts = [
        ("MiB double-booked", counts.double_booked_mib),
        ("wrong cards", counts.card_mismatches as u64),
        ("pods on overloaded nodes", counts.hot_node_placements as u64),
    ];
    let mut spans = vec![Span::styled("checked: ", PLAIN)];
    for (what, count) in parts {
        let style = if count == 0 { GOOD } else { BAD };
        spans.push(Span::styled(format!("{count} {what}   "), style));
    }
    Line::from(spans)
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::model::policy::Overload;
    use crate::view::reason::{self, Rejections};
    use crate::view::snapshot::CardRow;

    fn snapshot() -> Snapshot {
        let card = CardRow { pods: vec![('a', 12)], units: 16 };
        let on = Place::On { node: "gpu-1".to_owned(), card: Some(0), running: true };
        let message = "0/2 nodes are available: 2 Insufficient cpu.".to_owned();
        let mut big = pod_row("big-1", 'b', 20, Place::Waiting("any message".to_owned()));
        big.rejections = reason::example_rejections();
        Snapshot {
            seconds: 7,
            caption: "GPU memory is shared.".to_owned(),
            policy: Policy::Shipped,
            nodes: vec![node_row("cpu-2", Some(0.91), vec![]), node_row("gpu-1", None, vec![card])],
            pods: vec![
                pod_row("train-1", 'a', 12, on),
                big,
                pod_row("cpus-1", ' ', 0, Place::Waiting(message)),
            ],
            counts: Counts { pods: 2, bound: 1, running: 1, pending: 1, ..Counts::default() },
            page: "http://127.0.0.1:19107/ui/".to_owned(),
        }
    }

    fn node_row(name: &str, cpu: Option<f64>, cards: Vec<CardRow>) -> NodeRow {
        NodeRow {
            name: name.to_owned(),
            cpu,
            memory: Some(0.2),
            over: Overload { cpu: cpu.is_some_and(|cpu| cpu > 0.8), memory: false },
            silent: false,
            requested: 14,
            hot_value: 3,
            pods: 2,
            plugin_missing: cpu.is_none(),
            cards,
        }
    }

    fn pod_row(name: &str, letter: char, units: u64, place: Place) -> PodRow {
        PodRow {
            letter,
            uid: name.to_owned(),
            name: name.to_owned(),
            units,
            place,
            reason: Some(reason::example()),
            rejections: Rejections::default(),
        }
    }

    fn drawn(snapshot: &Snapshot, width: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, 12)).unwrap();
        terminal.draw(|frame| draw(frame, snapshot)).unwrap();
        let text = terminal.backend().to_string();
        text.lines().map(|line| line.trim_matches('"').trim_end().to_owned()).collect()
    }

    #[test]
    fn a_frame_shows_nodes_cards_pods_and_counts() {
        let expected = [
            "Plimsoll  load: ! over limit, M by memory, ? silent   req: CPU requested, %  7 s",
            "GPU memory is shared.",
            "node      load        req pod cards: a pod's letter once a GiB, · free",
            "cpu-2     ████▌  91%! 14  2",
            "gpu-1     unknown     14  2   aaaaaaaaaaaa···· no plugin",
            "pod         where          why: points; who's out       kube-scheduler alone",
            "a train-1   gpu-1/0 12 GiB 78, next 65; 2 over, 1 split cpu-2: overloaded",
            "b big-1     waits for 20 GiB; out: 2 overloaded, 1 with no such card",
            "  cpus-1    waits: 2 Insufficient cpu.",
            "",
            "pods 2   bound 1   ran 1   pending 1   http://127.0.0.1:19107/ui/",
            "checked: 0 MiB double-booked   0 wrong cards   0 pods on overloaded nodes",
        ];
        assert_eq!(drawn(&snapshot(), WIDTH), expected);
    }

    #[test]
    fn under_cranes_policy_a_frame_shows_hot_values() {
        let snapshot = Snapshot { policy: Policy::Crane, ..snapshot() };
        let drawn = drawn(&snapshot, WIDTH);
        assert!(drawn[0].contains("hot: bound of late"), "{drawn:?}");
        assert_eq!(drawn[3], "cpu-2     ████▌  91%! 3   2");
    }

    #[test]
    fn a_wide_frame_shows_reasons_in_whole_words() {
        let drawn = drawn(&snapshot(), 120).join("\n");
        let expected = "78 points, cpu-1 has 65; out: 2 overloaded, 1 with no such card";
        assert!(drawn.contains(expected), "{drawn}");
    }

    #[test]
    fn where_there_is_no_room_for_all_pods_the_waiting_and_the_newest_are_shown() {
        let mut snapshot = snapshot();
        let old = snapshot.pods[0].clone();
        for i in 0..9 {
            let name = format!("new-{i}");
            snapshot.pods.push(PodRow { name, ..old.clone() });
        }
        let drawn = drawn(&snapshot, WIDTH).join("\n");
        assert!(drawn.contains("big-1") && drawn.contains("new-8"), "{drawn}");
        assert!(!drawn.contains("train-1"), "{drawn}");
    }
}
