//! What a conversion keeps.

use clap::Parser;
use proptest::prelude::*;
use serde_json::Value;

use super::*;

fn convert_text(text: &str, unit_mib: u32) -> Result<(String, Vec<String>)> {
    let unit = format!("--unit-mib={unit_mib}");
    converted(text, Converter::new(&ConvertManifests::parse_from(["convert", "-f", "-", &unit])))
}

fn read(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap()
}

fn mib(quantity: &str) -> u64 {
    let bytes = placement::quantity::amount(quantity).unwrap();
    (bytes / f64::from(1 << 20)) as u64
}

/// MiB that a converted pod holds by its claims.
fn claimed(documents: &[Value]) -> u64 {
    let (pod, templates) = documents.split_last().unwrap();
    let mut sum = 0;
    for claim in pod["spec"]["resourceClaims"].as_array().unwrap() {
        let name = &claim["resourceClaimTemplateName"];
        let template = templates.iter().find(|it| it["metadata"]["name"] == *name).unwrap();
        let request = &template["spec"]["spec"]["devices"]["requests"][0]["exactly"];
        let memory = mib(request["capacity"]["requests"]["memory"].as_str().unwrap());
        sum += memory * request["count"].as_u64().unwrap_or(1);
    }
    sum
}

fn pod(init: &[u32], app: &[(u32, u32)]) -> String {
    let mut text = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\n  annotations:\n".to_owned();
    let counts: Vec<String> =
        app.iter().enumerate().map(|(at, (gpus, _))| format!("\"app{at}\":{gpus}")).collect();
    text += &format!("    plimsoll.dev/gpu-card-count: '{{{}}}'\nspec:\n", counts.join(","));
    let mut add = |list: &str, name: &str, units: Vec<u32>| {
        text += &format!("  {list}:\n");
        for (at, units) in units.into_iter().enumerate() {
            text += &format!(
                "  - {{name: {name}{at}, resources: {{limits: {{aliyun.com/gpu-mem: {units}}}}}}}\n"
            );
        }
    };
    if !init.is_empty() {
        add("initContainers", "init", init.to_vec());
    }
    add("containers", "app", app.iter().map(|(gpus, each)| gpus * each).collect());
    text
}

proptest! {
    #[test]
    fn claims_have_the_memory_of_the_units(
        app in proptest::collection::vec((1_u32..5, 1_u32..100), 1..5),
        unit in prop_oneof![Just(1024_u32), 1_u32..2048],
    ) {
        let (text, _) = convert_text(&pod(&[], &app), unit).unwrap();
        let units: u32 = app.iter().map(|(gpus, each)| gpus * each).sum();
        prop_assert_eq!(claimed(&read(&text)), u64::from(units) * u64::from(unit), "{}", text);
        prop_assert!(!text.contains("aliyun.com"), "{}", text);
    }

    #[test]
    fn init_containers_that_ask_for_more_are_met_by_one_claim(
        init in proptest::collection::vec(1_u32..100, 1..4),
        app in proptest::collection::vec(1_u32..100, 1..4),
    ) {
        let on_one: Vec<(u32, u32)> = app.iter().map(|units| (1, *units)).collect();
        let (text, notes) = convert_text(&pod(&init, &on_one), 1).unwrap();
        let most = |units: &[u32]| units.iter().copied().max().unwrap_or(0);
        let more = most(&init).saturating_sub(most(&app));
        let wanted = u64::from(app.iter().sum::<u32>() + more);
        prop_assert_eq!(claimed(&read(&text)), wanted, "{}", text);
        let told = notes.iter().any(|note| note.contains("grow for init container"));
        prop_assert_eq!(told, more > 0, "{:?}", notes);
    }

    #[test]
    fn a_text_without_units_stays(text in "(a: [0-9]{1,3}|# [a-z]{0,4}|b: '[a-z -]{0,4}'|---|--- # x|)(\n---)?\n?") {
        if let Ok((converted, notes)) = convert_text(&text, 1024) {
            prop_assert_eq!(converted, text);
            prop_assert!(notes.is_empty());
        }
    }
}

#[test]
fn sources_begin_at_a_line_of_dashes_alone() {
    let text = "a: 1\n---\nb: |\n  ---\n--- # c\r\n----\n";
    let wanted = [(1, "a: 1\n"), (2, "---\nb: |\n  ---\n"), (5, "--- # c\r\n----\n")];
    assert_eq!(sources(text), wanted);
}

#[test]
fn a_converted_text_is_not_converted_again() {
    let (text, _) = convert_text(&pod(&[3], &[(1, 2), (1, 4)]), 1024).unwrap();
    let (again, notes) = convert_text(&text, 1024).unwrap();
    assert_eq!((again, notes), (text, Vec::new()));
}
