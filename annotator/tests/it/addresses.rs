//! Exporters on nodes with IPv6 addresses.

use sim::node;

use crate::exporter::Exporter;
use crate::world::{CALM, Running, World};

const CPU: &str = "cpu_usage_avg_5m";
const READ: &str = "0.63012,2026-11-20T09:00:00Z";

/// A world whose exporter listens on IPv6 alone; `None` on a machine without IPv6.
async fn world() -> Option<World> {
    if !std::fs::exists("/proc/net/if_inet6").unwrap() {
        eprintln!("SKIPPED: no IPv6 on this machine, so no exporter on IPv6");
        return None;
    }
    let mut world = World::new().await;
    world.exporter = Exporter::start_at("[::1]:0", CALM, None).await;
    Some(world)
}

async fn start(world: &World) -> Running {
    let running = world.start().await;
    running.silent(0).await;
    running
}

#[tokio::test]
async fn an_ipv6_internal_ip_is_asked_in_brackets() {
    let Some(world) = world().await else { return };
    world.sim.put(node("a").address("::1"));
    let _running = start(&world).await;
    assert_eq!(world.annotations("a")[CPU], READ);
    let host = format!("host: [::1]:{}", world.exporter.port);
    let heads = world.exporter.heads();
    assert!(heads.iter().all(|head| head.to_lowercase().contains(&host)), "{heads:?}");
}

#[tokio::test]
async fn the_first_internal_ip_of_a_dual_stack_node_is_asked() {
    let Some(world) = world().await else { return };
    // The node's primary address comes first: IPv6 here, where alone the exporter listens.
    world.sim.put(node("a").address("::1").address("127.0.0.1"));
    let _running = start(&world).await;
    assert_eq!(world.annotations("a")[CPU], READ);
}

#[tokio::test]
async fn an_annotation_names_an_exporter_on_ipv6() {
    let Some(world) = world().await else { return };
    let exporter = format!("[::1]:{}", world.exporter.port);
    let annotated = node("a").address("127.0.0.1").annotation("plimsoll.dev/exporter", &exporter);
    world.sim.put(annotated);
    let _running = start(&world).await;
    assert_eq!(world.annotations("a")[CPU], READ);
}
