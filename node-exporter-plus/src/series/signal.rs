//! What is measured, and under which names it is known.

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

/// One thing measured on the node, as a gauge.
#[derive(Debug, Clone)]
pub struct Signal {
    kind: &'static Kind,
    instance: Option<Arc<Instance>>,
}

#[derive(Debug)]
struct Instance {
    value: Box<str>,
    name: Box<str>,
}

impl Signal {
    /// A signal of the whole node.
    #[must_use]
    pub const fn of_node(kind: &'static Kind) -> Self {
        Self { kind, instance: None }
    }

    /// The signal of one device, named by `value`.
    #[must_use]
    pub fn of(kind: &'static Kind, value: &str) -> Self {
        Self::known_as(kind, value, value)
    }

    /// The signal of one device that has a shorter name in flat JSON than in labels.
    #[must_use]
    pub fn known_as(kind: &'static Kind, value: &str, short: &str) -> Self {
        let name = flat(kind, short).into();
        Self { kind, instance: Some(Arc::new(Instance { value: value.into(), name })) }
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
        let legal = !short.is_empty() && short.chars().all(is_of_a_name);
        let instance = || Arc::new(Instance { value: value.into(), name: name.into() });
        legal.then(|| Self { kind, instance: Some(instance()) })
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> &'static Kind {
        self.kind
    }

    /// Its name in flat JSON and in policies, as in `cpu_usage` or `disk_sda_usage`. No two signals share one.
    #[must_use]
    pub fn name(&self) -> &str {
        self.instance.as_ref().map_or(self.kind.name, |instance| &instance.name)
    }

    /// The value of its label, if it is one of several.
    #[must_use]
    pub fn instance(&self) -> Option<&str> {
        self.instance.as_ref().map(|instance| &*instance.value)
    }
}

impl PartialEq for Signal {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

/// What names are made of: letters that no format has to escape.
fn is_of_a_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// `disk_device_usage` of `sda` is `disk_sda_usage`.
fn flat(kind: &Kind, short: &str) -> String {
    let word = kind.label.map(|label| format!("_{label}_")).unwrap_or_default();
    let short = short.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    let letter = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let short: String = short.chars().map(letter).collect();
    // Only the root directory has no letter.
    let short = if short.is_empty() { "root" } else { &short };
    kind.name.replacen(&word, &format!("_{short}_"), 1)
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
}
