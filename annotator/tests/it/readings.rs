//! The last readings of all nodes, as the extender asks for them.

use api::readings::PolledReadings;
use placement::units::NodeName;
use sim::{KeptAddress, NODES, node};

use crate::exporter::Answer;
use crate::world::{CALM, Running, World};

const CPU: &str = "cpu_usage_avg_5m";

/// Starts a replica of the annotator that is asked at `kept`.
async fn launch(world: &World, kept: &KeptAddress, flags: &[&str]) -> Running {
    let listen = format!("--listen-address={}", kept.address());
    world.launch(&[&[listen.as_str()], flags].concat()).await
}

/// The answer to a client that has an earlier one.
async fn ask(kept: &KeptAddress, before: Option<&PolledReadings>) -> Result<PolledReadings, u16> {
    let since = before.map(|answer| format!("?since={}", answer.version)).unwrap_or_default();
    let url = format!("http://{}/v1/readings{since}", kept.address());
    let answer = sim::http_client().unwrap().get(url).send().await.unwrap();
    let status = answer.status().as_u16();
    if status != 200 {
        return Err(status);
    }
    Ok(PolledReadings::from_json(&answer.text().await.unwrap()).unwrap())
}

/// The value of CPU and its age, by node.
fn cpu(answer: &PolledReadings) -> Vec<(&str, f64, i64)> {
    let mut all = Vec::new();
    for (position, node) in answer.nodes.iter().map(NodeName::as_str).enumerate() {
        for (metric, reading) in answer.of_node(position) {
            if metric.as_str() == CPU {
                let reading = reading.unwrap();
                let age = answer.time.duration_since(reading.at).as_secs();
                all.push((node, reading.value.get(), age));
            }
        }
    }
    all.sort_unstable_by_key(|(node, ..)| *node);
    all
}

#[tokio::test]
async fn each_poll_is_told_on_whether_it_is_written_or_not() {
    let world = World::with_node().await;
    world.sim.put(node("b").address("127.0.0.1"));
    let kept = KeptAddress::new().unwrap();
    let running = launch(&world, &kept, &["--dead-band=0.5"]).await;
    running.idle(2).await;
    let first = ask(&kept, None).await.unwrap();
    assert_eq!(cpu(&first), [("a", 0.63012, 0), ("b", 0.63012, 0)]);
    assert_eq!(cpu(&ask(&kept, Some(&first)).await.unwrap()), []);
    world.exporter.say(&CALM.replace("63.012", "81.5"));
    running.pass(180).await;
    let second = ask(&kept, Some(&first)).await.unwrap();
    assert_eq!(cpu(&second), [("a", 0.815, 0), ("b", 0.815, 0)]);
    world.annotated("a", CPU, "0.63012,2026-11-20T09:00:00Z").await;
    // What is known of a node without an answer grows old; of one that is gone nothing is told.
    world.exporter.set(Answer::Hang);
    world.sim.delete(NODES, "", "b");
    running.nodes_changed(1).await;
    running.advance(180);
    let third = ask(&kept, None).await.unwrap();
    assert_eq!(cpu(&third), [("a", 0.815, 180)]);
    assert_eq!(cpu(&ask(&kept, Some(&second)).await.unwrap()), []);
}

#[tokio::test]
async fn a_standby_says_that_it_is_one_and_tells_of_what_it_has_polled_once_it_leads() {
    const LEASE: &str = "--lease-name=annotator";
    let mut world = World::with_node().await;
    let [one, other] = [KeptAddress::new().unwrap(), KeptAddress::new().unwrap()];
    let leader = launch(&world, &one, &[LEASE]).await;
    leader.counted("plimsoll_annotator_leader 1").await;
    leader.idle(1).await;
    let before = ask(&one, None).await.unwrap();
    assert_eq!(before.nodes.len(), 1);
    let standby = launch(&world, &other, &[LEASE]).await;
    standby.idle(1).await;
    assert_eq!(ask(&other, Some(&before)).await, Err(503));
    world.stop(leader).await;
    standby.counted("plimsoll_annotator_leader 1").await;
    standby.idle(1).await;
    let none = ask(&other, Some(&before)).await.unwrap();
    assert_eq!(none.nodes, []);
    standby.pass(180).await;
    let polled = ask(&other, Some(&before)).await.unwrap();
    assert_eq!(cpu(&polled), [("a", 0.63012, 0)]);
    assert_eq!(ask(&other, Some(&none)).await.unwrap(), polled);
}
