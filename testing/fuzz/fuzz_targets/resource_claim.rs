#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| bodies::run("resource_claim", input));
