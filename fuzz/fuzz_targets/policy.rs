//! A policy file: parses, or says what is wrong; never panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use placement::policy::LoadPolicy;

fuzz_target!(|text: &str| {
    if let Err(error) = LoadPolicy::from_yaml(text) {
        assert!(!error.to_string().is_empty());
    }
});
