//! The UID of a pod, and the names of control groups that hold it.

use std::borrow::Borrow;
use std::fmt;

/// A pod's UID, in one of the two forms that pods have: a UUID, or for a static pod the 32 digits of its
/// configuration's hash. It needs no escaping in JSON.
///
/// # Examples
/// ```
/// use cgroups::PodUid;
///
/// let uid = PodUid::of_folder("kubepods-burstable-pod8b1f4a9e_0d4c_4a63_9d6e_2f6a1c0b7e55.slice").unwrap();
/// assert_eq!(uid.as_str(), "8b1f4a9e-0d4c-4a63-9d6e-2f6a1c0b7e55");
/// assert_eq!(PodUid::of_folder("pod8b1f4a9e-0d4c-4a63-9d6e-2f6a1c0b7e55"), Some(uid));
/// assert_eq!(PodUid::of_folder("kubepods-burstable.slice"), None);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodUid(Box<str>);

/// Where a UUID has its hyphens.
const HYPHENS: [usize; 4] = [8, 13, 18, 23];
const UUID: usize = 36;
const HASH: usize = 32;

impl PodUid {
    /// The UID in the name of a pod's control group: `podUID` of the cgroupfs driver, `kubepods-burstable-podUID.slice`
    /// of the systemd driver, which writes `_` for `-`. `None` for the name of anything else.
    #[must_use]
    pub fn of_folder(name: &str) -> Option<Self> {
        match name.strip_suffix(".slice") {
            Some(slice) => {
                let (_, last) = slice.rsplit_once('-')?;
                Self::parse(&last.strip_prefix("pod")?.replace('_', "-"))
            }
            None => Self::parse(name.strip_prefix("pod")?),
        }
    }

    /// The UID and the container's id in `SLICE:RUNTIME:ID`, such as
    /// `kubepods-burstable-podUID.slice:cri-containerd:ID`. That is the group of a container whose runtime has the
    /// cgroupfs driver while the kubelet has systemd's: the runtime takes the kubelet's text for a folder's name.
    #[must_use]
    pub fn of_container(name: &str) -> Option<(Self, &str)> {
        let mut parts = name.splitn(3, ':');
        let slice = parts.next().filter(|slice| slice.ends_with(".slice"))?;
        let (_runtime, id) = (parts.next()?, parts.next()?);
        Some((Self::of_folder(slice)?, id))
    }

    fn parse(text: &str) -> Option<Self> {
        let is_uuid = text.len() == UUID;
        if !is_uuid && text.len() != HASH {
            return None;
        }
        let valid = text.bytes().enumerate().all(|(at, byte)| {
            if is_uuid && HYPHENS.contains(&at) { byte == b'-' } else { byte.is_ascii_hexdigit() }
        });
        valid.then(|| Self(text.into()))
    }

    /// As the API server writes it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A UID has the order of its text.
impl Borrow<str> for PodUid {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UID: &str = "8b1f4a9e-0d4c-4a63-9d6e-2f6a1c0b7e55";
    const STATIC: &str = "04dbdd5b3b5b2a3a8c3fd1f3ad5f4a4e";

    fn read(name: &str) -> Option<String> {
        PodUid::of_folder(name).map(|uid| uid.to_string())
    }

    #[test]
    fn both_drivers_names_hold_a_uid() {
        let systemd = UID.replace('-', "_");
        for (name, uid) in [
            (format!("pod{UID}"), UID),
            (format!("pod{STATIC}"), STATIC),
            (format!("kubepods-pod{systemd}.slice"), UID),
            (format!("kubepods-besteffort-pod{STATIC}.slice"), STATIC),
            (format!("kubelet-kubepods-burstable-pod{systemd}.slice"), UID),
        ] {
            assert_eq!(read(&name).as_deref(), Some(uid), "{name}");
        }
    }

    #[test]
    fn names_of_other_things_hold_none() {
        let systemd = UID.replace('-', "_");
        for name in [
            UID.to_owned(),
            "pod".to_owned(),
            "kubepods-burstable.slice".to_owned(),
            format!("pod{systemd}"),
            format!("pod{systemd}.slice"),
            format!("pod{UID}.slice"),
            format!("pod{}", &UID[1..]),
            format!("pod{UID}0"),
            format!("pod{}", STATIC.replace('0', "g")),
            format!("pod{}", "-".repeat(36)),
            format!("pod{}", "é".repeat(16)),
            format!("pod{}", "0".repeat(36)),
            format!("crio-pod{UID}.scope"),
        ] {
            assert_eq!(read(&name), None, "{name}");
        }
    }

    #[test]
    fn a_container_outside_of_its_pods_folder_names_its_pod() {
        let slice = format!("kubepods-burstable-pod{}.slice", UID.replace('-', "_"));
        let name = format!("{slice}:cri-containerd:abc");
        let (uid, id) = PodUid::of_container(&name).unwrap();
        assert_eq!((uid.as_str(), id), (UID, "abc"));
        for other in [slice.clone(), format!("{slice}:abc"), format!("pod{UID}:cri-containerd:abc")]
        {
            assert_eq!(PodUid::of_container(&other), None, "{other}");
        }
        assert_eq!(read(&name), None);
    }

    proptest! {
        #[test]
        fn no_name_panics_and_what_is_read_is_hexadecimal(name in "(kubepods-)?pod[0-9a-f_\"\\\\é-]{28,40}(\\.slice)?") {
            if let Some(uid) = read(&name) {
                prop_assert!(uid.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit()));
            }
        }

        #[test]
        fn every_uid_reads_back(uid in "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}") {
            let systemd = format!("kubepods-pod{}.slice", uid.replace('-', "_"));
            prop_assert_eq!(read(&systemd), Some(uid.clone()));
            prop_assert_eq!(read(&format!("pod{uid}")), Some(uid));
        }
    }
}
