//! The pictures of bench/RESULTS.md and lab/RESULTS.md, drawn from the tables of their page.
//!
//! A table is found by its first column's heading, a row by its first cell.

mod svg;
mod table;

use svg::{Anchor, Picture, Scale, count};
use table::{Row, table};

use super::assert_fresh;
use crate::repository::read;

/// Draws a picture from the text of the page.
type Draw = fn(&str) -> Picture;

const PICTURES: [(&str, &str, Draw); 5] = [
    ("lab", "gpus-given-out.svg", gpus_given_out),
    ("lab", "hot-minutes.svg", hot_minutes),
    ("bench", "cost-by-nodes.svg", cost_by_nodes),
    ("bench", "echo-ratio.svg", echo_ratio),
    ("bench", "filter-calls.svg", filter_calls),
];

/// The greatest ratio to the echo that is a goal, by the row of its table.
const RATIO_GOALS: [(&str, f64); 3] =
    [("all nodes pass", 1.0), ("GPU pods, load entry", 1.2), ("GPU pods, GPU entry", 1.2)];

fn gpus_given_out(page: &str) -> Picture {
    let rows = table(page, "list of pods");
    let policies = [("best fit", "theirs"), ("FGD", "other"), ("Plimsoll", "ours")];
    let title = "GPUs given out when pods have asked for 100% of them: more is better";
    let mut picture = Picture::new(760, 96 + 28 * rows.len(), title);
    picture.legend(150.0, 52.0, &policies);
    let scale = Scale { low: 84.0, high: 98.0, start: 150.0, end: 700.0 };
    let bottom = 64.0 + 28.0 * count(rows.len());
    let ticks = ["84%", "86%", "88%", "90%", "92%", "94%", "96%", "98%"];
    scale.draw(&mut picture, [62.0, bottom], &ticks);
    for (place, row) in rows.iter().enumerate() {
        let y = 78.0 + 28.0 * count(place);
        let name = row.cell("list of pods").trim_matches('*');
        picture.text(136.0, y + 4.0, name, "name", Anchor::End);
        let shares = policies.map(|(policy, _)| row.numbers(policy)[0]);
        let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
        let most = shares.iter().copied().fold(0.0, f64::max);
        picture.line([scale.at(least), y], [scale.at(most), y], "axis");
        for ((_, style), share) in policies.iter().zip(shares) {
            picture.dot([scale.at(share), y], style);
        }
        let ours = shares[2];
        picture.text(scale.at(ours) + 9.0, y + 4.0, &format!("{ours:.2}"), "note", Anchor::Start);
    }
    picture
}

fn hot_minutes(page: &str) -> Picture {
    let rows = table(page, "policy");
    let bottom = 60.0 + 24.0 * count(rows.len());
    let title = "Node-minutes above 80% CPU, divided by those of crane's plugin: less is better";
    let mut picture = Picture::new(900, 94 + 24 * rows.len(), title);
    let columns = [("S40", 270.0, "40% mean use (S40)"), ("S55", 580.0, "55% mean use (S55)")];
    for (column, start, note) in columns {
        let scale = Scale { low: 0.0, high: 2.0, start, end: start + 230.0 };
        picture.text(start, 52.0, note, "strong", Anchor::Start);
        scale.draw(&mut picture, [60.0, bottom], &["0", "0.5", "1", "1.5", "2"]);
        picture.line([scale.at(1.0), 60.0], [scale.at(1.0), bottom], "axis");
        for (place, row) in rows.iter().enumerate() {
            let mut found = row.numbers(column);
            // The first row has minutes; the others are divided by them.
            if place == 0 {
                found[0] = 1.0;
            }
            let style = if row.cell("policy").contains("Plimsoll") { "ours" } else { "theirs" };
            draw_hot_minutes(&mut picture, &scale, 74.0 + 24.0 * count(place), &found, style);
        }
    }
    for (place, row) in rows.iter().enumerate() {
        let name = row.cell("policy").replace('*', "");
        let name = name.strip_suffix(", minutes").unwrap_or(&name);
        let style = if name.contains("Plimsoll") { "strong" } else { "name" };
        picture.text(256.0, 78.0 + 24.0 * count(place), name, style, Anchor::End);
    }
    picture
}

/// A policy's hot minutes, and where pods wait, for how long.
fn draw_hot_minutes(picture: &mut Picture, scale: &Scale, y: f64, found: &[f64], style: &str) {
    let Some(&ratio) = found.first() else {
        picture.text(scale.start + 6.0, y + 4.0, "not run", "note", Anchor::Start);
        return;
    };
    picture.bar([scale.start, y], scale.at(ratio) - scale.start, style);
    let label = scale.at(ratio) + 6.0;
    picture.text(label, y + 4.0, &format!("{ratio:.2}"), "note", Anchor::Start);
    if let Some(wait) = found.get(1) {
        let wait = format!("pods wait {wait} min");
        picture.text(label + 32.0, y + 4.0, &wait, "warn", Anchor::Start);
    }
}

/// The height of a label.
const LABEL: f64 = 16.0;

fn cost_by_nodes(page: &str) -> Picture {
    let rows = table(page, "µs");
    let sizes = ["100", "1,000", "5,000"];
    let mut picture =
        Picture::new(870, 316, "CPU of a call by the number of nodes, µs: less is better");
    for (row, (verb, start)) in rows.iter().zip([("Filter", 64.0), ("Prioritize", 484.0)]) {
        let across = Scale { low: 0.0, high: 5000.0, start, end: start + 260.0 };
        let up = Scale { low: 0.0, high: 800.0, start: 256.0, end: 66.0 };
        picture.text(start, 52.0, verb, "strong", Anchor::Start);
        for tick in [0.0, 200.0, 400.0, 600.0, 800.0] {
            let y = up.at(tick);
            picture.line([start, y], [start + 260.0, y], "grid");
            picture.text(start - 8.0, y + 4.0, &tick.to_string(), "note", Anchor::End);
        }
        across.draw(&mut picture, [252.0, 256.0], &sizes);
        picture.text(start + 130.0, 294.0, "nodes", "note", Anchor::Middle);
        let [ours, theirs] = [0, 1].map(|place| costs(row, sizes, place));
        draw_cost(&mut picture, &across, &up, &theirs, "theirs");
        draw_cost(&mut picture, &across, &up, &ours, "ours");
        label_costs(&mut picture, &up, start + 270.0, [ours[2][1], theirs[2][1]]);
    }
    picture
}

/// Writes what the lines are beside their ends. Labels that would lie over each other move apart.
fn label_costs(picture: &mut Picture, up: &Scale, x: f64, [ours, theirs]: [f64; 2]) {
    let apart = ((LABEL - (up.at(ours) - up.at(theirs)).abs()) / 2.0).max(0.0);
    let down = if ours > theirs { apart } else { -apart };
    for (name, cost, moved) in [("Plimsoll", ours, -down), ("echo", theirs, down)] {
        let label = format!("{name} {cost}");
        picture.text(x, up.at(cost) + 4.0 + moved, &label, "name", Anchor::Start);
    }
}

/// Nodes and µs, from the given place in each cell.
fn costs(row: &Row, sizes: [&str; 3], place: usize) -> [[f64; 2]; 3] {
    sizes.map(|size| [table::numbers(size)[0], row.numbers(&format!("{size} nodes"))[place]])
}

fn draw_cost(
    picture: &mut Picture,
    across: &Scale,
    up: &Scale,
    costs: &[[f64; 2]; 3],
    style: &str,
) {
    let points = costs.map(|[nodes, cost]| [across.at(nodes), up.at(cost)]);
    picture.curve(&points, style);
    for point in points {
        picture.dot(point, style);
    }
}

fn echo_ratio(page: &str) -> Picture {
    let rows = table(page, "5,000 names");
    let bottom = 76.0 + 44.0 * count(rows.len());
    let title =
        "CPU of a call divided by the echo's, 5,000 nodes: a dot for each run, less is better";
    let mut picture = Picture::new(860, 106 + 44 * rows.len(), title);
    picture.legend(196.0, 52.0, &[("idle cores", "ours"), ("second machine", "other")]);
    picture.line([466.0, 48.0], [494.0, 48.0], "goal");
    picture.text(502.0, 52.0, "goal", "note", Anchor::Start);
    for (verb, start) in [("Filter", 196.0), ("Prioritize", 536.0)] {
        let scale = Scale { low: 0.4, high: 1.4, start, end: start + 290.0 };
        picture.text(start, 74.0, verb, "strong", Anchor::Start);
        scale.draw(&mut picture, [82.0, bottom], &["0.4", "0.6", "0.8", "1.0", "1.2", "1.4"]);
        picture.line([scale.at(1.0), 82.0], [scale.at(1.0), bottom], "axis");
        for (place, row) in rows.iter().enumerate() {
            draw_ratios(&mut picture, &scale, 104.0 + 44.0 * count(place), row, verb);
        }
    }
    for (place, row) in rows.iter().enumerate() {
        let y = 108.0 + 44.0 * count(place);
        picture.text(182.0, y, row.cell("5,000 names"), "name", Anchor::End);
    }
    picture
}

/// The ratios of a row, and its goal where the row has ratios of the first machine.
fn draw_ratios(picture: &mut Picture, scale: &Scale, y: f64, row: &Row, verb: &str) {
    let goal = RATIO_GOALS.iter().find(|(name, _)| *name == row.cell("5,000 names"));
    if let Some((_, goal)) = goal
        && !row.cell(verb).is_empty()
    {
        picture.line([scale.at(*goal), y - 18.0], [scale.at(*goal), y + 18.0], "goal");
    }
    for ratio in row.numbers(verb) {
        picture.dot([scale.at(ratio), y - 8.0], "ours");
    }
    for ratio in row.numbers(&format!("{verb}, second machine")) {
        picture.dot([scale.at(ratio), y + 8.0], "other");
    }
}

fn filter_calls(page: &str) -> Picture {
    let rows = table(page, "how the annotator writes");
    let bottom = 48.0 + 28.0 * count(rows.len());
    let title = "Filter calls a minute of 100 waiting pods, 5,000 nodes: less is better";
    let mut picture = Picture::new(760, 82 + 28 * rows.len(), title);
    let scale = Scale { low: 0.0, high: 1000.0, start: 270.0, end: 700.0 };
    scale.draw(&mut picture, [44.0, bottom], &["0", "200", "400", "600", "800", "1,000"]);
    for (place, row) in rows.iter().enumerate() {
        let y = 62.0 + 28.0 * count(place);
        let mut name = row.cell("how the annotator writes").to_owned();
        let hovering = row.cell("nodes that hover around a limit");
        if hovering != "none" {
            name += &format!(", {hovering} nodes at a limit");
        }
        picture.text(256.0, y + 4.0, &name, "name", Anchor::End);
        let calls = row.numbers("Filter calls")[0];
        picture.bar([scale.start, y], scale.at(calls) - scale.start, "ours");
        picture.text(scale.at(calls) + 6.0, y + 4.0, &calls.to_string(), "note", Anchor::Start);
    }
    picture.line([scale.at(600.0), 44.0], [scale.at(600.0), bottom], "goal");
    picture.text(scale.at(600.0) + 6.0, bottom - 4.0, "goal: 600", "warn", Anchor::Start);
    picture
}

#[test]
fn the_pictures_of_the_results_are_fresh() {
    for (folder, name, draw) in PICTURES {
        let page = read(&format!("{folder}/RESULTS.md"));
        assert_fresh(&format!("{folder}/pictures/{name}"), &draw(&page).svg());
    }
}
