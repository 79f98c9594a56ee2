//! Node annotation `cordoned-gpus`, the operator's: the UUIDs of GPUs that take no new pods, with commas between them.
//!
//! A GPU stays the same under its UUID, while the index of another may become its own when the node boots.

use std::collections::BTreeSet;

use placement::units::GpuId;

use crate::gpus::MAX_NAME;

/// The most GPUs that are read: those of a node, and many that were replaced.
pub const MAX_GPUS: usize = 1024;

/// The GPUs of an annotation. Blanks around a UUID do not count; what is longer than any UUID is left out.
///
/// # Examples
///
/// ```
/// let gpus = api::cordoned::parse("GPU-b, GPU-a,");
/// assert_eq!(api::cordoned::text(&gpus).as_deref(), Some("GPU-a,GPU-b"));
/// assert_eq!(api::cordoned::text(&api::cordoned::parse(" ")), None);
/// ```
#[must_use]
pub fn parse(text: &str) -> BTreeSet<GpuId> {
    let is_name = |name: &&str| !name.is_empty() && name.len() <= MAX_NAME;
    text.split(',').map(str::trim).filter(is_name).take(MAX_GPUS).map(GpuId::from).collect()
}

/// As it is in the annotation; `None`, for no annotation, if there is no GPU.
#[must_use]
pub fn text(gpus: &BTreeSet<GpuId>) -> Option<String> {
    let names: Vec<&str> = gpus.iter().map(GpuId::as_str).collect();
    if names.is_empty() { None } else { Some(names.join(",")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_uuid_is_left_out_and_the_others_stay() {
        let long = "x".repeat(MAX_NAME + 1);
        let gpus = parse(&format!(",, GPU-a ,{long},GPU-b,GPU-a"));
        assert_eq!(gpus, ["GPU-a", "GPU-b"].map(GpuId::from).into());
        assert_eq!(parse(&text(&gpus).unwrap()), gpus);
        let many: Vec<String> = (0..2 * MAX_GPUS).map(|gpu| gpu.to_string()).collect();
        assert_eq!(parse(&many.join(",")).len(), MAX_GPUS);
    }
}
