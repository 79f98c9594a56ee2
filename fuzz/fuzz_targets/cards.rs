//! The cards annotation: whatever it holds, the ledger neither panics nor gives more than there is.
#![no_main]

use libfuzzer_sys::fuzz_target;
use placement::gpu::{GpuRequest, NodeLedger, NodeShare, cards_from_json};
use placement::units::{PodUid, Units};

fuzz_target!(|text: &str| {
    let _ = NodeShare::from_json(text);
    let Ok(cards) = cards_from_json(text) else { return };
    let mut ledger = NodeLedger::default();
    ledger.set_cards(cards);
    let request = GpuRequest::single("app", Units(1)).expect("one unit");
    if ledger.reserve(&PodUid::from("a"), &request).is_ok() {
        assert!(ledger.accounts().iter().any(|a| a.used <= a.card.units && a.used > Units::ZERO));
    }
});
