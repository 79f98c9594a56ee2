//! Whatever a file of samples holds, it fills a store or is refused. The checksum is made to fit, so that what lies
//! behind it is reached; the raw bytes are tried, too.
#![no_main]

use std::io::Cursor;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use node_exporter_plus::Store;
use node_exporter_plus::plan::Plan;
use node_exporter_plus::series::Moment;
use node_exporter_plus::storage::{Boot, read};

fuzz_target!(|bytes: &[u8]| {
    let mut sealed = b"plimsoll-samples\x01\0\0\0".to_vec();
    sealed.extend(bytes);
    sealed.extend(crc32fast::hash(&sealed).to_le_bytes());
    for file in [bytes, &sealed] {
        let Ok(interval) = "10s".parse() else { return };
        let mut store = Store::new(interval, Plan::default());
        let now = Moment(Duration::from_secs(100_000));
        let _ = read(&mut Cursor::new(file), &Boot("b".to_owned()), &mut store, now);
        let _ = store.readings(now).count();
    }
});
