//! A reading's annotation: what decodes also encodes to something that decodes to the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use placement::reading::ReadingCodec;

fuzz_target!(|text: &str| {
    let codec = ReadingCodec::default();
    if let Ok(reading) = codec.decode(text) {
        let again = codec.decode(&codec.encode(&reading)).expect("what we write, we read");
        assert_eq!(again.at, reading.at);
    }
    let _ = codec.decode_count(text);
});
