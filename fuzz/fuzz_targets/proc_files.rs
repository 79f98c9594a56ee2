//! Whatever a kernel writes into /proc and /sys, it is read or refused.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use node_exporter_plus::collectors::{cpu, disk, filesystem, load, memory, network, pressure};

fuzz_target!(|bytes: &[u8]| {
    let _ = cpu::parse(bytes);
    let _ = disk::parse(bytes);
    let _ = filesystem::parse(bytes, Path::new("/"));
    let _ = load::parse(bytes);
    let _ = load::parse_online(bytes);
    let _ = memory::parse(bytes).map(|info| (info.usage(), info.swap_usage()));
    let _ = network::parse(bytes);
    let _ = network::parse_speed(bytes);
    let _ = pressure::parse(bytes);
});
