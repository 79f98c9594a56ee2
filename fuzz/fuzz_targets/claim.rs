//! A claim annotation: one that counts charges exactly the peak of the spec, over all its cards.
#![no_main]

use libfuzzer_sys::fuzz_target;
use placement::gpu::{Claim, GpuRequest};
use placement::units::Units;

fuzz_target!(|text: &str| {
    let Ok(claim) = Claim::from_json(text) else { return };
    let request = GpuRequest::single("app", Units(3)).expect("three units");
    if let Ok(charge) = claim.charge(&request) {
        assert_eq!(charge.values().copied().sum::<Units>(), request.peak());
    }
    assert_eq!(Claim::from_json(&claim.to_json()).as_ref(), Ok(&claim));
});
