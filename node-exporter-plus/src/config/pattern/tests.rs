//! What patterns match, and which patterns no signal can match.

use super::*;
use crate::collectors::KINDS;
use crate::collectors::disk::DEVICE_USAGE;
use proptest::prelude::*;

fn matches(pattern: &str, name: &str) -> bool {
    Pattern::new(pattern).0.matches(name)
}

#[test]
fn stars_match_any_characters_and_nothing_else_is_special() {
    for pattern in ["*", "cpu*", "*usage", "c*_*e", "cpu_usage", "cpu_usage*", "**c**"] {
        assert!(matches(pattern, "cpu_usage"), "{pattern}");
    }
    for pattern in ["", "cpu", "*x*", "usage*", "cpu?usage", "cpu[_]usage"] {
        assert!(!matches(pattern, "cpu_usage"), "{pattern}");
    }
}

#[test]
fn many_stars_cost_no_more_than_the_product_of_both_lengths() {
    let name = "a".repeat(200);
    assert!(!matches(&format!("{}x", "*".repeat(20)), &name));
    assert!(!matches(&format!("{}x", "*a".repeat(30)), &name));
    assert!(matches(&"*a".repeat(30), &name));
}

fn can_match(pattern: &str) -> bool {
    let pattern = Pattern::new(pattern);
    KINDS.iter().any(|kind| pattern.can_match(kind))
}

#[test]
fn a_pattern_that_no_node_can_match_is_known_as_such() {
    for pattern in [
        "*",
        "cpu_usage",
        "cpu_*",
        "psi_*_some",
        "disk_usage",
        "disk_device_usage",
        "disk_sda_usage",
        "disk_sd*",
        "*_sda_*",
        "*0_usage",
        "fs_var_lib_usage",
        "gpu_0_*",
        "network_*_bytes",
        "d*k_nvme*e",
    ] {
        assert!(can_match(pattern), "{pattern}");
    }
    for pattern in [
        "",
        "cpu_usge",
        "dsk_usage",
        "dsk_*",
        "*_usge",
        "disk__usage",
        "disk_s-a_usage",
        "disk_ä*",
        "load2",
        "gpu_0_speed",
        "/var/lib",
    ] {
        assert!(!can_match(pattern), "{pattern}");
    }
}

proptest! {
    #[test]
    fn a_pattern_that_matches_some_disk_is_possible(pattern in "[dsik_a*ug]{0,16}", word in "[a-z0-9_]{1,5}") {
        let name = format!("disk_{word}_usage");
        let pattern = if matches(&pattern, &name) { pattern } else { name.replace(&word, "*") };
        prop_assert!(!matches(&pattern, &name) || Pattern::new(&pattern).can_match(&DEVICE_USAGE));
    }
}
