//! The use of a synthetic node: idle nights, busy days, spikes, saturation. The same at every run.

/// 26 hours of slots of ten seconds, so that a window of a day has moved on from its beginning.
pub(crate) const SLOTS: u32 = 26 * 360;
/// The virtual boot in Unix time: a full minute, since Prometheus's subqueries step on minutes of the epoch.
pub(crate) const BOOT: u64 = 1_700_006_400;

/// The Unix time of a slot's sample.
pub(crate) fn unix(slot: u32) -> u64 {
    BOOT + u64::from(slot) * 10
}

/// The share of busy time in the ten seconds before a slot's sample, from 0 to 1.
pub(crate) fn busy(slot: u32) -> f64 {
    let hour = f64::from(slot) / 360.0;
    let diurnal = 0.35 - 0.3 * (hour / 24.0 * std::f64::consts::TAU).cos();
    match slot {
        // The first hour idles, but for two busy minutes right after the boot.
        1..12 => 0.97,
        12..360 => 0.004,
        // A long saturation, a short one, and spikes of one and of ten minutes.
        4_000..4_100 => 1.0,
        6_200..6_212 => 1.0,
        _ if slot % 977 < 6 => 0.93,
        _ if slot % 1_531 < 60 => 0.71,
        _ => diurnal + 0.05 * noise(slot),
    }
}

/// Noise from -1 to 1: the finaliser of MurmurHash3.
pub(crate) fn noise(slot: u32) -> f64 {
    let mut hash = slot.wrapping_add(0x9e37_79b9);
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
    f64::from(hash ^ (hash >> 16)) / f64::from(u32::MAX) * 2.0 - 1.0
}

/// Whether a sample was taken: some are missing, once 12 in a row, once an hour and a half.
pub(crate) fn sampled(slot: u32) -> bool {
    let missed = noise(slot.wrapping_mul(7)) > 0.98;
    !missed && !(2_500..2_512).contains(&slot) && !(7_000..7_540).contains(&slot)
}
