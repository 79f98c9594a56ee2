//! The golden expositions under `promtool check metrics`.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

#[test]
#[ignore = "needs promtool: make oracle"]
fn promtool_finds_nothing_wrong_in_any_golden_exposition() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut checked = 0;
    for entry in fs::read_dir(golden).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "prom") {
            let file = File::open(&path).unwrap();
            let output =
                Command::new("promtool").args(["check", "metrics"]).stdin(file).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success() && said.is_empty(), "{}: {said}", path.display());
            checked += 1;
        }
    }
    println!("promtool check metrics: {checked} expositions, nothing found");
    assert!(checked >= 2);
}
