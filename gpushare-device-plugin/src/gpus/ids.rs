//! Device ids: `<prefix>-<slot>`, both directions. The prefix names a GPU, the slot one of its units.
//!
//! Invariant: an id names one GPU, before and after a reboot. The prefix is the first eight digits of
//! the GPU's UUID, or more if other GPUs of the node begin with the same eight. A prefix that fits two
//! GPUs names neither.
//!
//! Ids are short because the kubelet's gRPC client takes messages of 4 MiB at most, and because the
//! kubelet writes every id into its pod's status. One of eleven characters is 24 bytes on the wire.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use placement::units::GpuId;

/// Digits in the shortest prefix.
const SHORTEST: usize = 8;
/// The longest id that the kubelet accepts, in bytes.
const LONGEST_ID: usize = 63;
/// The longest slot with its dash: `-4294967295`.
const LONGEST_SLOT: usize = 11;

/// The kubelet's name of one unit of memory on one GPU.
///
/// # Examples
///
/// ```
/// use gpushare_device_plugin::gpus::ids::{DeviceId, prefixes};
/// use placement::units::GpuId;
///
/// let gpus = [GpuId::from("GPU-a1b2c3d4-0001"), GpuId::from("GPU-ffee0011-0002")];
/// let prefixes = prefixes(&gpus);
/// let id = DeviceId::new(&prefixes[0], 7);
/// assert_eq!(id.to_string(), "a1b2c3d4-7");
/// assert_eq!("a1b2c3d4-7".parse(), Ok(id));
/// // An id of Aliyun's plugin.
/// assert!("GPU-a1b2c3d4-0001-_-7".parse::<DeviceId>().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId {
    prefix: String,
    slot: u32,
}

impl DeviceId {
    /// The id of a unit: `prefix` from [`prefixes`], `slot` from 0 to the GPU's units minus 1.
    pub fn new(prefix: &str, slot: u32) -> Self {
        Self { prefix: prefix.to_owned(), slot }
    }

    /// The digits that name the GPU.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The number of the unit on its GPU.
    pub fn slot(&self) -> u32 {
        self.slot
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.prefix, self.slot)
    }
}

/// Device ids, each once, in order of prefix and slot.
pub type Ids = BTreeSet<DeviceId>;

/// A text that is not a device id of this plugin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a device id of this plugin (`<GPU>-<slot>`)")]
pub struct ForeignId(pub String);

impl FromStr for DeviceId {
    type Err = ForeignId;

    fn from_str(text: &str) -> Result<Self, ForeignId> {
        parse(text).ok_or_else(|| ForeignId(text.chars().take(LONGEST_ID).collect()))
    }
}

fn parse(text: &str) -> Option<DeviceId> {
    let (prefix, slot) = text.split_once('-')?;
    // Each id has one text: no sign, no leading zeros.
    let is_canonical = slot == "0" || !slot.starts_with(['0', '+']);
    let fits = !prefix.is_empty() && text.len() <= LONGEST_ID && prefix.chars().all(is_digit);
    if !is_canonical || !fits {
        return None;
    }
    Some(DeviceId::new(prefix, slot.parse().ok()?))
}

fn is_digit(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit()
}

/// The digits of a UUID, without `GPU-` and dashes, in lower case; at most as many as fit into an id with the
/// longest slot.
pub fn digits(gpu: &GpuId) -> String {
    let text = gpu.as_str();
    let bare = text.split_once('-').map_or(text, |(_, bare)| bare);
    bare.chars()
        .map(|c| c.to_ascii_lowercase())
        .filter(|c| is_digit(*c))
        .take(LONGEST_ID - LONGEST_SLOT)
        .collect()
}

/// The prefix of each GPU of a node, in the order of `gpus`: its first eight digits, or as many as
/// no other GPU begins with.
pub fn prefixes<'a>(gpus: impl IntoIterator<Item = &'a GpuId>) -> Vec<String> {
    let all: Vec<String> = gpus.into_iter().map(digits).collect();
    all.iter().map(|own| prefix(own, &all)).collect()
}

fn prefix(own: &str, all: &[String]) -> String {
    let mut needed = SHORTEST;
    for other in all.iter().filter(|other| *other != own) {
        needed = needed.max(shared_digits(own, other) + 1);
    }
    own.chars().take(needed).collect()
}

/// The number of digits with which both begin.
fn shared_digits(one: &str, other: &str) -> usize {
    one.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count()
}

/// The first eight of `items` for a message, separated by commas, then ` and N more` if there are more.
pub fn first_few<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    const SHOWN: usize = 8;
    let all: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    let shown = all.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if all.len() > SHOWN { format!("{shown} and {} more", all.len() - SHOWN) } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn gpu(text: &str) -> GpuId {
        GpuId::from(text)
    }

    #[test]
    fn gpus_that_differ_in_eight_digits_have_prefixes_of_eight() {
        let gpus = [
            gpu("GPU-a1b2c3d4-0000-1111-2222-333344445555"),
            gpu("GPU-b1b2c3d4-0000-1111-2222-333344445555"),
        ];
        assert_eq!(prefixes(&gpus), ["a1b2c3d4", "b1b2c3d4"]);
        assert_eq!(DeviceId::new("a1b2c3d4", 7).to_string(), "a1b2c3d4-7");
    }

    #[test]
    fn gpus_that_share_eight_digits_both_get_longer_prefixes() {
        let gpus = [gpu("GPU-a1b2c3d4-01"), gpu("GPU-a1b2c3d4-02"), gpu("GPU-ffffffff-01")];
        assert_eq!(prefixes(&gpus), ["a1b2c3d401", "a1b2c3d402", "ffffffff"]);
    }

    #[test]
    fn ids_of_other_plugins_are_foreign() {
        for text in [
            "GPU-a1b2c3d4-_-3",
            "a1b2c3d4",
            "a1b2c3d4-",
            "a1b2c3d4-07",
            "a1b2c3d4-+7",
            "-7",
            "a-4294967296",
            "",
        ] {
            assert_eq!(text.parse::<DeviceId>(), Err(ForeignId(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn a_long_list_is_cut_short() {
        assert_eq!(first_few(["a-1", "a-2"]), "a-1, a-2");
        assert_eq!(first_few(0..10), "0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
    }

    proptest! {
        #[test]
        fn an_id_reads_back_as_it_was_written(prefix in "[0-9a-f]{8,32}", slot: u32) {
            let id = DeviceId::new(&prefix, slot);
            prop_assert_eq!(id.to_string().parse::<DeviceId>(), Ok(id));
        }

        #[test]
        fn reading_never_panics_and_what_reads_writes_back_the_same(text in ".{0,80}") {
            if let Ok(id) = text.parse::<DeviceId>() {
                prop_assert_eq!(id.to_string(), text);
            }
        }

        #[test]
        fn no_two_gpus_share_a_prefix(uuids in proptest::collection::btree_set("GPU-a1b2c3d4-[0-9a-f]{4}", 1..8)) {
            let gpus: Vec<GpuId> = uuids.iter().map(|uuid| gpu(uuid)).collect();
            let prefixes = prefixes(&gpus);
            for (own, uuid) in prefixes.iter().zip(&gpus) {
                let owners = gpus.iter().filter(|gpu| digits(gpu).starts_with(own.as_str()));
                prop_assert_eq!(owners.collect::<Vec<_>>(), vec![uuid]);
            }
        }
    }
}
