//! What the kubelet tells of the node's container runtime.

/// What is wrong if a runtime, as `containerd://1.7.27`, has CDI only where its configuration says so: without it,
/// containers start without their GPUs, and no call fails. `None` for runtimes that have it by default, and for
/// unknown ones.
///
/// containerd has CDI from 1.7 on, and by default from 2.0 on.
pub(crate) fn cdi_may_be_off(runtime: &str) -> Option<String> {
    let version = runtime.strip_prefix("containerd://")?;
    let major: u32 = version.trim_start_matches('v').split('.').next()?.parse().ok()?;
    (major < 2).then(|| {
        format!(
            "the container runtime is containerd {version}, where CDI is off by default, and containers then start \
             without their GPUs: \
             set enable_cdi = true in its configuration, as `containerd config dump` shows it, or update to 2.0"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cdi_may_be_off_in_containerd_before_2() {
        for old in ["containerd://1.7.27", "containerd://1.6.38-ubuntu1", "containerd://v1.7.0"] {
            assert!(cdi_may_be_off(old).is_some_and(|note| note.contains("enable_cdi")), "{old}");
        }
        for other in [
            "containerd://2.0.0",
            "containerd://2.3.7-rc.1",
            "cri-o://1.33.0",
            "containerd://",
            "docker",
            "",
        ] {
            assert_eq!(cdi_may_be_off(other), None, "{other}");
        }
    }
}
