//! What the picture looks like.

use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;
use crate::motive;
use crate::story::CardLine;

fn picture() -> Picture {
    let node = |name: &str, cpu, cards: Vec<CardLine>| NodeLine {
        name: name.to_owned(),
        cpu,
        memory: Some(0.2),
        old: false,
        hot: 1,
        pods: 2,
        plugin_away: cpu.is_none(),
        cards,
    };
    let card = CardLine { pods: vec![('a', 12)], units: 16 };
    let on = Place::On { node: "gpu-1".to_owned(), card: Some(0), running: true };
    let pod = |name: &str, letter, units, place| PodLine {
        letter,
        uid: name.to_owned(),
        name: name.to_owned(),
        units,
        place,
        motive: Some(motive::samples()),
    };
    let why = "0/2 nodes are available: 1 Insufficient GPU Memory in one device: asked 20 units.";
    Picture {
        seconds: 7,
        caption: "GPU memory is shared.".to_owned(),
        scene: Scene {
            nodes: vec![node("cpu-2", Some(0.91), vec![]), node("gpu-1", None, vec![card])],
            pods: vec![
                pod("train-1", 'a', 12, on),
                pod("big-1", 'b', 20, Place::Waits(why.to_owned())),
            ],
        },
        tally: Tally { pods: 2, bound: 1, running: 1, pending: 1, ..Tally::default() },
    }
}

fn drawn(picture: &Picture, width: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, 12)).unwrap();
    terminal.draw(|frame| draw(frame, picture)).unwrap();
    let text = terminal.backend().to_string();
    text.lines().map(|line| line.trim_matches('"').trim_end().to_owned()).collect()
}

#[test]
fn a_frame_shows_nodes_cards_pods_and_counts() {
    let expected = [
        "Plimsoll  load: ! over limit, M by memory, ? silent   hot: bound of late     7 s",
        "GPU memory is shared.",
        "node      load        hot pod cards: a pod's letter once a GiB, · free",
        "cpu-2     ████▌  91%! 1   2",
        "gpu-1     unknown     1   2   aaaaaaaaaaaa···· no plugin",
        "pod         where          why: of 10 points; who's out kube-scheduler alone",
        "a train-1   gpu-1/0 12 GiB 8/10, next 6; 2 hot, 1 split cpu-2: overloaded",
        "b big-1     waits: Insufficient GPU Memory in one device: asked 20 units.",
        "",
        "",
        "pods 2   bound 1   ran 1   pending 1",
        "checked: 0 MiB double-booked   0 wrong cards   0 pods on overloaded nodes",
    ];
    assert_eq!(drawn(&picture(), WIDTH), expected);
}

#[test]
fn a_wide_frame_tells_reasons_in_whole_words() {
    let drawn = drawn(&picture(), 120).join("\n");
    let expected = "8 of 10 points, cpu-1 has 6; out: 2 overloaded, 1 with no such card";
    assert!(drawn.contains(expected), "{drawn}");
}

#[test]
fn where_there_is_no_room_for_all_pods_the_waiting_and_the_newest_are_shown() {
    let mut picture = picture();
    let old = picture.scene.pods[0].clone();
    for i in 0..9 {
        let name = format!("new-{i}");
        picture.scene.pods.push(PodLine { name, ..old.clone() });
    }
    let drawn = drawn(&picture, WIDTH).join("\n");
    assert!(drawn.contains("big-1") && drawn.contains("new-8"), "{drawn}");
    assert!(!drawn.contains("train-1"), "{drawn}");
}
