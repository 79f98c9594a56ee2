//! What is measured, and under which names it is known.
//!
//! Invariant: a kind and an instance are one signal, whatever it is called. Several may flatten to one plain name
//! (`/a/b`, `/a-b`); the store tells those apart, see [`Claim`].

use std::cmp::Ordering;
use std::sync::Arc;

/// A kind of signal: one of the whole node, or one for each device, card or mount point.
#[derive(Debug, PartialEq, Eq)]
pub struct Kind {
    /// The stem of its metrics' names, as in `cpu_usage` or `disk_device_usage`.
    pub name: &'static str,
    /// What it is, with its unit, for people.
    pub help: &'static str,
    /// Which word of the name stands for the instance, if there are several; it is the label in `/metrics`.
    pub label: Option<&'static str>,
}

/// One thing measured on the node, as a gauge. They are ordered by their plain names.
#[derive(Debug, Clone)]
pub struct Signal {
    kind: &'static Kind,
    instance: Option<Arc<Instance>>,
    apart: bool,
}

#[derive(Debug)]
struct Instance {
    value: Box<str>,
    plain: Box<str>,
    apart: Box<str>,
    claim: Claim,
}

/// When a signal goes by its plain name, which others may flatten to as well. Who does not has the checksum of
/// its instance in its name. So it depends on who is there, and never on who came first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claim {
    /// Always: the name says all of the instance, as `fs_a_b_usage` does of `/a/b` and `fs_root_usage` of `/`.
    Own,
    /// As long as nobody else flattens to it, as `/a-b` does.
    Free,
    /// Never: it is the root directory's, and this is another, as `/root`.
    Taken,
}

impl Signal {
    /// A signal of the whole node.
    #[must_use]
    pub const fn of_node(kind: &'static Kind) -> Self {
        Self { kind, instance: None, apart: false }
    }

    /// The signal of one device, named by `value`.
    #[must_use]
    pub fn of(kind: &'static Kind, value: &str) -> Self {
        Self::known_as(kind, value, value)
    }

    /// The signal of one device that has a shorter name in flat JSON than in labels.
    #[must_use]
    pub fn known_as(kind: &'static Kind, value: &str, short: &str) -> Self {
        let word = word(short);
        let claim = claim(value, &word);
        let plain = flat(kind, &word).into();
        let apart = flat(kind, &format!("{word}{}", ending(value))).into();
        let instance = Instance { value: value.into(), plain, apart, claim };
        Self { kind, instance: Some(Arc::new(instance)), apart: claim == Claim::Taken }
    }

    /// A signal under a name that [`Signal::name`] gave, as a file tells it. None where this kind has no such name.
    pub(crate) fn named(kind: &'static Kind, name: &str, value: Option<&str>) -> Option<Self> {
        let (Some(label), Some(value)) = (kind.label, value) else {
            let whole = kind.label.is_none() && value.is_none() && name == kind.name;
            return whole.then_some(Self::of_node(kind));
        };
        let (start, end) = kind.name.split_once(&format!("_{label}_"))?;
        let short = name.strip_prefix(start)?.strip_prefix('_')?.strip_suffix(end)?;
        let short = short.strip_suffix('_')?;
        let short = short.strip_suffix(&ending(value)).unwrap_or(short);
        let legal = !short.is_empty() && short.chars().all(is_of_a_name);
        legal.then(|| Self::known_as(kind, value, short))
    }

    /// Whether it is of the whole node, not of one of its devices.
    pub(crate) fn is_of_node(&self) -> bool {
        self.instance.is_none()
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> &'static Kind {
        self.kind
    }

    /// Its name in flat JSON and in policies, as in `cpu_usage` or `disk_sda_usage`. No two signals that a store
    /// tells share one.
    #[must_use]
    pub fn name(&self) -> &str {
        let instance = self.instance.as_ref();
        instance
            .map_or(self.kind.name, |known| if self.apart { &known.apart } else { &known.plain })
    }

    /// The name that others may share.
    pub(crate) fn plain(&self) -> &str {
        self.instance.as_ref().map_or(self.kind.name, |instance| &instance.plain)
    }

    /// Lets it go by its plain name if that is its own, or nobody else's now (it is not `shared`).
    pub(crate) fn tell_apart(&mut self, shared: bool) {
        self.apart = match self.instance.as_ref().map_or(Claim::Own, |instance| instance.claim) {
            Claim::Own => false,
            Claim::Free => shared,
            Claim::Taken => true,
        };
    }

    /// Every name under which it can be asked for, that of its kind among them.
    pub(crate) fn names(&self) -> [&str; 3] {
        let apart = self.instance.as_ref().map_or(self.kind.name, |instance| &instance.apart);
        [self.plain(), apart, self.kind.name]
    }

    /// The value of its label, if it is one of several.
    #[must_use]
    pub fn instance(&self) -> Option<&str> {
        self.instance.as_ref().map(|instance| &*instance.value)
    }

    /// Whether both are of the same thing, which may have got another name: cards are numbered anew.
    pub(crate) fn is_of_the_same(&self, other: &Self) -> bool {
        std::ptr::eq(self.kind, other.kind) && self.instance() == other.instance()
    }

    fn key(&self) -> (&str, &str, Option<&str>) {
        (self.plain(), self.kind.name, self.instance())
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

/// What names are made of: letters that no format has to escape.
fn is_of_a_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// What stands for the root directory, which has no letter.
const ROOT: &str = "root";

/// `/var/lib` is `var_lib`.
fn word(short: &str) -> String {
    let short = short.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    if short.is_empty() {
        return ROOT.to_owned();
    }
    short.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

/// `disk_device_usage` of `sda` is `disk_sda_usage`.
fn flat(kind: &Kind, word: &str) -> String {
    let place = kind.label.map(|label| format!("_{label}_")).unwrap_or_default();
    kind.name.replacen(&place, &format!("_{word}_"), 1)
}

fn claim(value: &str, word: &str) -> Claim {
    match value.strip_prefix('/') {
        Some("") => Claim::Own,
        Some(_) if word == ROOT => Claim::Taken,
        Some(path) if path == word.replace('_', "/") => Claim::Own,
        None if value == word => Claim::Own,
        _ => Claim::Free,
    }
}

/// What tells an instance apart from others of the same word: the same on every node and after every start.
fn ending(value: &str) -> String {
    format!("_{:08x}", crc32fast::hash(value.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    static DISK: Kind = Kind { name: "disk_device_usage", help: "", label: Some("device") };
    static MOUNT: Kind = Kind { name: "fs_mountpoint_usage", help: "", label: Some("mountpoint") };

    #[test]
    fn a_name_in_a_file_is_one_that_the_kind_can_have() {
        let named = |kind, name, value| {
            Signal::named(kind, name, value).map(|signal| signal.name().to_owned())
        };
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
    fn an_instance_takes_the_place_of_the_word_that_stands_for_it() {
        assert_eq!(Signal::of(&DISK, "sda").name(), "disk_sda_usage");
        assert_eq!(Signal::of(&DISK, "dm-0").name(), "disk_dm_0_usage");
        assert_eq!(Signal::of(&MOUNT, "/").name(), "fs_root_usage");
        assert_eq!(Signal::of(&MOUNT, "/var/lib").name(), "fs_var_lib_usage");
        assert_eq!(Signal::of(&MOUNT, "/var/lib").instance(), Some("/var/lib"));
    }

    #[test]
    fn only_the_root_directory_is_called_root() {
        assert_eq!(Signal::of(&MOUNT, "/root").name(), "fs_root_b203698f_usage");
        assert_eq!(Signal::of(&DISK, "root").name(), "disk_root_usage");
        for nameless in ["/-", "/_", "/\u{65e5}\u{672c}"] {
            assert!(Signal::of(&MOUNT, nameless).name() != "fs_root_usage", "{nameless}");
        }
    }

    #[test]
    fn a_name_is_the_own_one_of_those_that_it_says_all_of() {
        let claim = |value| claim(value, &word(value));
        assert_eq!(["/", "/a", "/a/b"].map(claim), [Claim::Own; 3]);
        assert_eq!(["/a-b", "/a_b", "/a/b_c", "/a.b"].map(claim), [Claim::Free; 4]);
        assert_eq!(["sda", "dm_0"].map(claim), [Claim::Own; 2]);
        assert_eq!(["dm-0", "nvme0c1.2"].map(claim), [Claim::Free; 2]);
    }

    #[test]
    fn a_name_in_a_file_is_read_whether_told_apart_or_not() {
        let mut signal = Signal::known_as(&DISK, "GPU-8f", "0");
        for shared in [true, false] {
            signal.tell_apart(shared);
            let read = Signal::named(&DISK, signal.name(), Some("GPU-8f")).unwrap();
            assert_eq!((read.name(), &read), ("disk_0_usage", &signal));
        }
    }
}
