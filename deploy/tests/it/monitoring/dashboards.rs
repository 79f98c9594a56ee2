//! The dashboards: what Grafana needs in each file, one layout without overlaps, and no panel with a series for each
//! node.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{dashboard_files, promql};

/// What a large cluster has of each node.
const OF_NODES: [&str; 4] = ["node_", "plimsoll_exporter_", "plimsoll_gpu_", "process_"];
/// Functions that keep few of many series.
const FEW: [&str; 7] = ["topk(", "sum", "max", "min", "count", "quantile", "histogram_quantile"];

fn panels(dashboard: &Value) -> Vec<Value> {
    dashboard["panels"].as_array().cloned().expect("panels")
}

/// The queries of all panels.
pub(super) fn expressions(dashboard: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for panel in panels(dashboard) {
        for target in panel["targets"].as_array().into_iter().flatten() {
            found.push(target["expr"].as_str().expect("an expression").to_owned());
        }
    }
    found
}

#[test]
fn there_are_four_dashboards_each_with_a_uid_of_its_own_and_the_variables_of_its_queries() {
    let files = dashboard_files();
    let names: Vec<&str> = files.keys().map(String::as_str).collect();
    assert_eq!(names, ["gpu", "overview", "readings", "scheduling"]);
    for (file, dashboard) in files {
        assert_eq!(dashboard["uid"], format!("plimsoll-{file}"));
        assert!(dashboard["title"].as_str().is_some_and(|it| it.starts_with("Plimsoll / ")));
        assert_eq!(
            dashboard["tags"][0], "plimsoll",
            "{file}: the links between them go by the tag"
        );
        let variables = dashboard["templating"]["list"].as_array().expect("variables");
        let variables: Vec<&str> =
            variables.iter().map(|it| it["name"].as_str().expect("a name")).collect();
        assert_eq!(variables[..2], ["datasource", "cluster"], "{file}");
        let text = dashboard["panels"].to_string();
        assert_eq!(text.contains("$node"), variables.contains(&"node"), "{file}");
    }
}

#[test]
fn every_panel_has_a_description_a_unit_and_queries_of_the_chosen_source_and_clusters() {
    for (file, dashboard) in dashboard_files() {
        for panel in panels(&dashboard).iter().filter(|panel| panel["type"] != "row") {
            let what = format!("{file}: {}", panel["title"]);
            assert!(panel["description"].as_str().is_some_and(|it| it.ends_with('.')), "{what}");
            assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{what}");
            let targets = panel["targets"].as_array().expect("targets");
            let ids: BTreeSet<String> = targets.iter().map(|it| it["refId"].to_string()).collect();
            assert_eq!(ids.len(), targets.len(), "{what}");
            for target in targets {
                assert_eq!(target["datasource"]["uid"], "${datasource}", "{what}");
                let expression = target["expr"].as_str().expect("an expression");
                for (metric, labels) in promql::names(expression).selectors {
                    let of_all = metric == "plimsoll:slo_budget:ratio";
                    assert!(of_all || labels.contains(&"cluster".to_owned()), "{what}: {metric}");
                }
            }
        }
    }
}

#[test]
fn panels_have_ids_of_their_own_and_do_not_overlap() {
    for (file, dashboard) in dashboard_files() {
        let mut ids = BTreeSet::new();
        let mut taken = BTreeSet::new();
        for panel in panels(&dashboard) {
            assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{file}: {}", panel["id"]);
            let place = |side: &str| panel["gridPos"][side].as_u64().expect("a number");
            assert!(place("x") + place("w") <= 24, "{file}: {}", panel["title"]);
            for x in place("x")..place("x") + place("w") {
                for y in place("y")..place("y") + place("h") {
                    assert!(taken.insert((x, y)), "{file}: {} overlaps", panel["title"]);
                }
            }
        }
    }
}

/// Whether an expression has a series for each node.
fn grows_with_nodes(expression: &str) -> bool {
    let names = promql::names(expression);
    let of_nodes = names
        .selectors
        .iter()
        .any(|(metric, _)| OF_NODES.iter().any(|start| metric.starts_with(start)));
    if !of_nodes || expression.starts_with("topk(") {
        return false;
    }
    let aggregated = FEW.iter().any(|start| expression.starts_with(start));
    !aggregated || by(expression).contains("node")
}

/// The labels of the first `by`.
fn by(expression: &str) -> &str {
    let rest = expression.split_once("by (").map_or("", |(_, rest)| rest);
    rest.split(')').next().unwrap_or_default()
}

#[test]
fn no_panel_has_a_series_for_each_node() {
    for (file, dashboard) in dashboard_files() {
        for expression in expressions(&dashboard) {
            assert!(!grows_with_nodes(&expression), "{file}: {expression}");
        }
    }
}
