//! The picture: 80 columns by 24 lines, in the terminal's own colours.
//!
//! Only the default colours and four of the 16 base ones are used, so that it reads on light and dark
//! themes alike; colour never carries what the text does not say.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::Paragraph;

use super::checker::Tally;
use super::loads::LIMIT;
use super::story::{CardLine, NodeLine, Place, PodLine, Scene};

/// Columns that are drawn.
pub(super) const WIDTH: u16 = 80;
/// Lines that are drawn where there are no more.
pub(super) const HEIGHT: u16 = 24;
/// Cells of a load bar.
const BAR: usize = 5;
/// Lines that are not pods: title, caption, two headings, a blank, two of footer.
const OTHER_LINES: usize = 6;

const PLAIN: Style = Style::new();
const FAINT: Style = Style::new().add_modifier(Modifier::DIM);
const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);
const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
const GOOD: Style = Style::new().fg(Color::Green);
const WAITING: Style = Style::new().fg(Color::Magenta);
/// Pods on a card take turns, so that neighbours can be told apart.
const TURNS: [Style; 2] = [Style::new().fg(Color::Blue), Style::new().fg(Color::Cyan)];

/// What a frame shows.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Picture {
    /// Since the start.
    pub(super) seconds: u64,
    pub(super) caption: String,
    pub(super) scene: Scene,
    pub(super) tally: Tally,
}

/// Draws a frame.
pub(super) fn draw(frame: &mut Frame<'_>, picture: &Picture) {
    let area = frame.area();
    let height = usize::from(area.height.min(60));
    let text = Text::from(lines(picture, height));
    let area = Rect { width: area.width.min(WIDTH), ..area };
    frame.render_widget(Paragraph::new(text), area);
}

fn lines(picture: &Picture, height: usize) -> Vec<Line<'static>> {
    let mut lines = vec![title(picture), Line::styled(picture.caption.clone(), STRONG)];
    lines.push(Line::styled(
        format!("{:<10}{:<12}{:<4}{:<4}{}", "node", "load", "hot", "pod", "cards, a letter a GiB"),
        FAINT,
    ));
    let letters = Letters::of(&picture.scene);
    lines.extend(picture.scene.nodes.iter().map(|node| node_line(node, &letters)));
    lines.push(Line::styled(
        format!("{:<12}{:<15}{:<29}{}", "pod", "where", "why (points of 10)", "by default"),
        FAINT,
    ));
    let room = height.saturating_sub(OTHER_LINES + picture.scene.nodes.len());
    lines.extend(newest(&picture.scene.pods, room).map(|pod| pod_line(pod, &letters)));
    while lines.len() + 2 < height {
        lines.push(Line::default());
    }
    lines.truncate(height.saturating_sub(2));
    lines.push(counts(&picture.tally));
    lines.push(invariants(&picture.tally));
    lines
}

fn title(picture: &Picture) -> Line<'static> {
    let right = format!("{:>3} s", picture.seconds);
    let (name, left) = ("Plimsoll", "  its four real programs on an embedded cluster of 12 nodes");
    Line::from(vec![
        Span::styled(name, STRONG),
        Span::styled(left, FAINT),
        Span::raw(
            " ".repeat(usize::from(WIDTH).saturating_sub(name.len() + left.len() + right.len())),
        ),
        Span::styled(right, FAINT),
    ])
}

/// Pods that wait are always shown, first; then the newest others, in the order of their creation.
fn newest(pods: &[PodLine], room: usize) -> impl Iterator<Item = &PodLine> {
    let waits = |pod: &&PodLine| !matches!(pod.place, Place::On { .. });
    let waiting: Vec<&PodLine> = pods.iter().filter(waits).collect();
    let others: Vec<&PodLine> = pods.iter().filter(|pod| !waits(pod)).collect();
    let waiting_shown = waiting.len().min(room);
    let skip = others.len().saturating_sub(room - waiting_shown);
    others.into_iter().skip(skip).chain(waiting.into_iter().take(waiting_shown))
}

fn node_line(node: &NodeLine, letters: &Letters<'_>) -> Line<'static> {
    let mut spans = vec![Span::raw(format!("{:<10}", node.name))];
    spans.extend(load_bar(node));
    spans.push(Span::raw(format!("{:<4}{:<4}", node.hot, node.pods)));
    for card in &node.cards {
        spans.extend(card_bar(card, letters));
        spans.push(Span::raw(" "));
    }
    Line::from(spans)
}

/// The load of the processors, or of the memory where that is what forbids (`M`), with a mark where it
/// forbids new pods (`!`) and where nothing was heard of late (`?`).
fn load_bar(node: &NodeLine) -> Vec<Span<'static>> {
    let memory =
        node.memory.filter(|memory| *memory > LIMIT && node.cpu.is_none_or(|cpu| cpu < LIMIT));
    let Some(load) = memory.or(node.cpu) else {
        return vec![Span::styled(format!("{:<12}", "unknown"), FAINT)];
    };
    let full = (load * BAR as f64).round() as usize;
    let style = if load > LIMIT { BAD } else { GOOD };
    let mark = match (node.old, load > LIMIT, memory) {
        (true, ..) => "?",
        (_, true, Some(_)) => "M",
        (_, true, None) => "!",
        _ => " ",
    };
    vec![
        Span::styled("█".repeat(full.min(BAR)), style),
        Span::styled("░".repeat(BAR.saturating_sub(full)), FAINT),
        Span::styled(
            format!("{:>4.0}%{mark} ", load * 100.0),
            if load > LIMIT { BAD } else { PLAIN },
        ),
    ]
}

fn card_bar(card: &CardLine, letters: &Letters<'_>) -> Vec<Span<'static>> {
    let used: u64 = card.pods.iter().map(|(_, units)| units).sum();
    let mut spans: Vec<Span<'static>> = Vec::new();
    for (turn, (pod, units)) in card.pods.iter().enumerate() {
        let run = letters.of_pod(pod).to_string().repeat(usize::try_from(*units).unwrap_or(0));
        spans.push(Span::styled(
            run,
            if used > card.units { BAD } else { TURNS[turn % TURNS.len()] },
        ));
    }
    let free = card.units.saturating_sub(used);
    spans.push(Span::styled("·".repeat(usize::try_from(free).unwrap_or(0)), FAINT));
    spans
}

fn pod_line(pod: &PodLine, letters: &Letters<'_>) -> Line<'static> {
    let letter = if pod.units > 0 { letters.of_pod(&pod.name) } else { ' ' };
    let name = Span::raw(format!("{letter} {:<10}", cut(&pod.name, 9)));
    let amount = if pod.units > 0 { format!("{} GiB ", pod.units) } else { String::new() };
    match &pod.place {
        Place::Waits(reason) => {
            let words = if reason.is_empty() { "waits".to_owned() } else { brief(reason) };
            Line::from(vec![name, Span::styled(cut(&format!("{amount}{words}"), 68), WAITING)])
        }
        Place::Failed(reason) => Line::from(vec![name, Span::styled(cut(reason, 68), BAD)]),
        Place::On { node, card, running } => {
            let card = card.map_or(String::new(), |card| format!("/{card}"));
            let place = format!("{node}{card}{}", if *running { "" } else { " …" });
            Line::from(vec![
                name,
                Span::raw(format!("{:<15}", cut(&format!("{place} {amount}"), 15))),
                Span::raw(format!("{:<29}", cut(&pod.why, 28))),
                Span::styled(cut(&pod.by_default, 24), FAINT),
            ])
        }
    }
}

/// The part of kube-scheduler's sentence that says most: what is about cards, if anything is.
fn brief(reason: &str) -> String {
    let (_, reasons) = reason.split_once(": ").unwrap_or(("", reason));
    match reasons.find("Insufficient GPU Memory") {
        Some(at) => reasons[at..].to_owned(),
        None => reasons.to_owned(),
    }
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

/// A letter for each GPU pod, in turn.
struct Letters<'a>(Vec<(&'a str, char)>);

impl<'a> Letters<'a> {
    fn of(scene: &'a Scene) -> Self {
        let gpu = scene.pods.iter().filter(|pod| pod.units > 0);
        let letters = ('a'..='z').chain('A'..='Z').cycle();
        Self(gpu.map(|pod| pod.name.as_str()).zip(letters).collect())
    }

    fn of_pod(&self, name: &str) -> char {
        self.0.iter().find(|(pod, _)| *pod == name).map_or('?', |(_, letter)| *letter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn picture() -> Picture {
        let node = |name: &str, cpu, cards| NodeLine {
            name: name.to_owned(),
            cpu,
            memory: Some(0.2),
            old: false,
            hot: 1,
            pods: 2,
            cards,
        };
        let card = CardLine { pods: vec![("train-1".to_owned(), 12)], units: 16 };
        let on = Place::On { node: "gpu-1".to_owned(), card: Some(0), running: true };
        let pod = |name: &str, units, place| PodLine {
            uid: name.to_owned(),
            name: name.to_owned(),
            units,
            place,
            why: "8/10, next 6; 2 too hot".to_owned(),
            by_default: "cpu-2: overloaded".to_owned(),
        };
        let why =
            "0/2 nodes are available: 1 Insufficient GPU Memory in one device: asked 20 units.";
        Picture {
            seconds: 7,
            caption: "GPU memory is shared.".to_owned(),
            scene: Scene {
                nodes: vec![node("cpu-2", Some(0.91), vec![]), node("gpu-1", None, vec![card])],
                pods: vec![pod("train-1", 12, on), pod("big-1", 20, Place::Waits(why.to_owned()))],
            },
            tally: Tally { pods: 2, bound: 1, running: 1, pending: 1, ..Tally::default() },
        }
    }

    fn drawn(picture: &Picture) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(WIDTH, 14)).unwrap();
        terminal.draw(|frame| draw(frame, picture)).unwrap();
        let text = terminal.backend().to_string();
        text.lines().map(|line| line.trim_matches('"').trim_end().to_owned()).collect()
    }

    #[test]
    fn a_frame_shows_nodes_cards_pods_and_counts() {
        let expected = [
            "Plimsoll  its four real programs on an embedded cluster of 12 nodes          7 s",
            "GPU memory is shared.",
            "node      load        hot pod cards, a letter a GiB",
            "cpu-2     █████  91%! 1   2",
            "gpu-1     unknown     1   2   aaaaaaaaaaaa····",
            "pod         where          why (points of 10)           by default",
            "a train-1   gpu-1/0 12 GiB 8/10, next 6; 2 too hot      cpu-2: overloaded",
            "b big-1     20 GiB Insufficient GPU Memory in one device: asked 20 units.",
            "",
            "",
            "",
            "",
            "pods 2   bound 1   ran 1   pending 1",
            "checked: 0 MiB double-booked   0 wrong cards   0 pods on overloaded nodes",
        ];
        assert_eq!(drawn(&picture()), expected);
    }

    #[test]
    fn where_there_is_no_room_for_all_pods_the_waiting_and_the_newest_are_shown() {
        let mut picture = picture();
        let old = picture.scene.pods[0].clone();
        for i in 0..9 {
            let name = format!("new-{i}");
            picture.scene.pods.push(PodLine { name, ..old.clone() });
        }
        let drawn = drawn(&picture).join("\n");
        assert!(drawn.contains("big-1") && drawn.contains("new-8"), "{drawn}");
        assert!(!drawn.contains("train-1"), "{drawn}");
    }
}
