//! What is measured, and its names.
//!
//! A signal of a device has the device in its name: `fs_mountpoint_usage` of `/var/lib` is `fs_var_lib_usage`. Several
//! devices may get the same *plain name* so (`/a/b`, `/a-b`); those that do have a checksum in their names. Which do
//! depends on the devices that are there, never on their order ([`PlainName`]).
//!
//! Invariant: a signal's identity is its kind and device, not its name.

use std::cmp::Ordering;
use std::sync::Arc;

/// A kind of signal: one of the whole node, or one for each device (disk, interface, GPU, mount point).
#[derive(Debug, PartialEq, Eq)]
pub struct Kind {
    /// The beginning of its metrics' names, `cpu_usage` or `disk_device_usage`.
    pub name: &'static str,
    /// What it is, with its unit.
    pub help: &'static str,
    /// The placeholder of the device in `name`, which is also the label in `/metrics`; `None` for a signal of the node.
    pub label: Option<&'static str>,
}

impl Kind {
    /// A kind of signal of the whole node.
    #[must_use]
    pub const fn of_node(name: &'static str, help: &'static str) -> Self {
        Self { name, help, label: None }
    }

    /// A kind of signal of each device. `label` is the device's placeholder in `name`.
    #[must_use]
    pub const fn of_device(name: &'static str, label: &'static str, help: &'static str) -> Self {
        Self { name, help, label: Some(label) }
    }
}

/// A quantity of this node that is sampled, a gauge. Ordered by plain names.
///
/// # Examples
/// ```
/// use node_exporter_plus::collectors::{disk, filesystem};
/// use node_exporter_plus::series::Signal;
///
/// assert_eq!(Signal::of_node(&disk::USAGE).name(), "disk_usage");
/// assert_eq!(Signal::of_device(&disk::DEVICE_USAGE, "sda").name(), "disk_sda_usage");
/// let root = Signal::of_device(&filesystem::MOUNT_USAGE, "/");
/// assert_eq!((root.name(), root.device()), ("fs_root_usage", Some("/")));
/// ```
#[derive(Debug, Clone)]
pub struct Signal {
    kind: &'static Kind,
    device: Option<Arc<Device>>,
    /// Whether its name has the checksum.
    checksummed: bool,
}

#[derive(Debug)]
struct Device {
    /// As the kernel or NVML names it: the label's value.
    name: Box<str>,
    /// The signal's name, `fs_a_b_usage`.
    plain: Box<str>,
    /// The same with the checksum of `name`, `fs_a_b_13969bf8_usage`.
    checksummed: Box<str>,
    use_of_plain: PlainName,
}

/// When a signal has its plain name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PlainName {
    /// Always: the device follows from it, as `/a/b` from `fs_a_b_usage` and `/` from `fs_root_usage`.
    Always,
    /// While no other device has the same, as `/a-b` and `/a_b` have.
    Unshared,
    /// Never: it is the root directory's, and this is another device, as `/root` is.
    Never,
}

impl Signal {
    /// A signal of the whole node.
    #[must_use]
    pub const fn of_node(kind: &'static Kind) -> Self {
        Self { kind, device: None, checksummed: false }
    }

    /// The signal of a device.
    #[must_use]
    pub fn of_device(kind: &'static Kind, device: &str) -> Self {
        Self::of_named_device(kind, device, device)
    }

    /// The signal of a device with a shorter name in signals' names than in labels: a GPU by its index, not its UUID.
    #[must_use]
    pub fn of_named_device(kind: &'static Kind, device: &str, short: &str) -> Self {
        let word = word(short);
        let use_of_plain = use_of_plain(device, &word);
        let names = Device {
            name: device.into(),
            plain: flat(kind, &word).into(),
            checksummed: flat(kind, &format!("{word}{}", checksum(device))).into(),
            use_of_plain,
        };
        let checksummed = use_of_plain == PlainName::Never;
        Self { kind, device: Some(Arc::new(names)), checksummed }
    }

    /// The signal of this kind and device that has this [`Signal::name`]. `None` where the kind can have no such name.
    pub(crate) fn with_name(kind: &'static Kind, name: &str, device: Option<&str>) -> Option<Self> {
        let (Some(label), Some(device)) = (kind.label, device) else {
            let of_node = kind.label.is_none() && device.is_none() && name == kind.name;
            return of_node.then_some(Self::of_node(kind));
        };
        let (start, end) = kind.name.split_once(&format!("_{label}_"))?;
        let word =
            name.strip_prefix(start)?.strip_prefix('_')?.strip_suffix(end)?.strip_suffix('_')?;
        let short = word.strip_suffix(&checksum(device)).unwrap_or(word);
        let legal =
            !short.is_empty() && short.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        legal.then(|| Self::of_named_device(kind, device, short))
    }

    /// Whether it is of the whole node.
    pub(crate) fn is_of_node(&self) -> bool {
        self.device.is_none()
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> &'static Kind {
        self.kind
    }

    /// Its name in flat JSON and in policies: `cpu_usage`, `disk_sda_usage`. Letters, digits and `_` alone. Unique
    /// among the signals that a store serves.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.device {
            Some(device) if self.checksummed => &device.checksummed,
            Some(device) => &device.plain,
            None => self.kind.name,
        }
    }

    /// The name without a checksum, which several signals can have.
    pub(crate) fn plain(&self) -> &str {
        self.device.as_ref().map_or(self.kind.name, |device| &device.plain)
    }

    /// Sets its name. `shared`: another signal that is currently served has the same plain name.
    pub(crate) fn set_shared(&mut self, shared: bool) {
        let use_of_plain = self.device.as_ref().map(|device| device.use_of_plain);
        self.checksummed = match use_of_plain.unwrap_or(PlainName::Always) {
            PlainName::Always => false,
            PlainName::Unshared => shared,
            PlainName::Never => true,
        };
    }

    /// The names that a configuration can use for it: without checksum, with it, and that of its kind.
    pub(crate) fn names(&self) -> [&str; 3] {
        let checksummed = self.device.as_ref().map_or(self.kind.name, |device| &device.checksummed);
        [self.plain(), checksummed, self.kind.name]
    }

    /// The device, as labels name it; `None` for a signal of the node.
    #[must_use]
    pub fn device(&self) -> Option<&str> {
        self.device.as_ref().map(|device| &*device.name)
    }

    /// Whether both are of one kind and device. Their names may differ: a GPU's index can change.
    pub(crate) fn has_device_of(&self, other: &Self) -> bool {
        std::ptr::eq(self.kind, other.kind) && self.device() == other.device()
    }

    fn key(&self) -> (&str, &str, Option<&str>) {
        (self.plain(), self.kind.name, self.device())
    }
}

impl PartialEq for Signal {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Signal {}

impl PartialOrd for Signal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Signal {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

/// The root directory's name in signals' names.
const ROOT: &str = "root";

/// A device's name in signals' names: `var_lib` for `/var/lib`.
fn word(short: &str) -> String {
    let trimmed = short.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    if trimmed.is_empty() {
        return ROOT.to_owned();
    }
    trimmed.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

/// A signal's name: `disk_sda_usage` of `disk_device_usage` and `sda`.
fn flat(kind: &Kind, word: &str) -> String {
    let place = kind.label.map(|label| format!("_{label}_")).unwrap_or_default();
    kind.name.replacen(&place, &format!("_{word}_"), 1)
}

fn use_of_plain(device: &str, word: &str) -> PlainName {
    match device.strip_prefix('/') {
        Some("") => PlainName::Always,
        Some(_) if word == ROOT => PlainName::Never,
        Some(path) if path == word.replace('_', "/") => PlainName::Always,
        None if device == word => PlainName::Always,
        _ => PlainName::Unshared,
    }
}

/// The CRC-32 of a device's name, as it is put into a signal's name: the same on every node and after every start.
fn checksum(device: &str) -> String {
    format!("_{:08x}", crc32fast::hash(device.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    static DISK: Kind = Kind { name: "disk_device_usage", help: "", label: Some("device") };
    static MOUNT: Kind = Kind { name: "fs_mountpoint_usage", help: "", label: Some("mountpoint") };

    fn named(kind: &'static Kind, name: &str, value: Option<&str>) -> Option<String> {
        Signal::with_name(kind, name, value).map(|signal| signal.name().to_owned())
    }

    #[test]
    fn only_names_that_the_kind_can_have_read_back() {
        assert_eq!(named(&DISK, "disk_sda_usage", Some("sda")).as_deref(), Some("disk_sda_usage"));
        for other in
            ["mem_usage", "disk_usage", "disk__usage", "disk_s\"_usage", "disk_sda_usage\n"]
        {
            assert_eq!(named(&DISK, other, Some("sda")), None, "{other}");
        }
        assert_eq!(named(&DISK, "disk_sda_usage", None), None);
        static LOAD: Kind = Kind { name: "load1", help: "", label: None };
        assert_eq!(named(&LOAD, "load1", None).as_deref(), Some("load1"));
        assert_eq!(named(&LOAD, "load1", Some("sda")), None);
        assert_eq!(named(&LOAD, "load5", None), None);
    }

    #[test]
    fn a_device_takes_the_place_of_its_label_in_the_name() {
        assert_eq!(Signal::of_device(&DISK, "sda").name(), "disk_sda_usage");
        assert_eq!(Signal::of_device(&DISK, "dm-0").name(), "disk_dm_0_usage");
        assert_eq!(Signal::of_device(&MOUNT, "/").name(), "fs_root_usage");
        assert_eq!(Signal::of_device(&MOUNT, "/var/lib").name(), "fs_var_lib_usage");
        assert_eq!(Signal::of_device(&MOUNT, "/var/lib").device(), Some("/var/lib"));
    }

    #[test]
    fn only_the_root_directory_has_the_plain_name_root() {
        assert_eq!(Signal::of_device(&MOUNT, "/root").name(), "fs_root_b203698f_usage");
        assert_eq!(Signal::of_device(&DISK, "root").name(), "disk_root_usage");
        for nameless in ["/-", "/_", "/\u{65e5}\u{672c}"] {
            assert!(Signal::of_device(&MOUNT, nameless).name() != "fs_root_usage", "{nameless}");
        }
    }

    fn uses(device: &str) -> PlainName {
        use_of_plain(device, &word(device))
    }

    #[test]
    fn a_plain_name_belongs_to_the_device_that_can_be_told_from_it() {
        assert_eq!(["/", "/a", "/a/b"].map(uses), [PlainName::Always; 3]);
        assert_eq!(["/a-b", "/a_b", "/a/b_c", "/a.b"].map(uses), [PlainName::Unshared; 4]);
        assert_eq!(["sda", "dm_0"].map(uses), [PlainName::Always; 2]);
        assert_eq!(["dm-0", "nvme0c1.2"].map(uses), [PlainName::Unshared; 2]);
    }

    #[test]
    fn a_name_reads_back_with_and_without_a_checksum() {
        let mut signal = Signal::of_named_device(&DISK, "GPU-8f", "0");
        for shared in [true, false] {
            signal.set_shared(shared);
            let read = Signal::with_name(&DISK, signal.name(), Some("GPU-8f")).unwrap();
            assert_eq!((read.name(), &read), ("disk_0_usage", &signal));
        }
    }
}
