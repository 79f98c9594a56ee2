//! Whatever a configuration file says, it is a plan or an error that says where.
#![no_main]

use libfuzzer_sys::fuzz_target;
use node_exporter_plus::plan::Plan;

fuzz_target!(|text: &str| {
    if let Ok(interval) = "10s".parse() {
        let _ = Plan::parse(text, interval).map_err(|error| error.to_string());
    }
});
