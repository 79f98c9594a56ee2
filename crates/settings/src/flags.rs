//! The shared flags, each also an environment variable.

use std::path::PathBuf;

use jiff::tz::TimeZone;
use placement::names::Names;
use placement::reading::ReadingCodec;

/// Where the API server is.
#[derive(Debug, Clone, clap::Args)]
pub struct ApiArgs {
    /// The API server's address and credentials, to run outside of a cluster [default: the pod's own service account].
    #[arg(long, env = "PLIMSOLL_KUBECONFIG", value_name = "PATH")]
    pub kubeconfig: Option<PathBuf>,
}

/// The names on the wire. Every Plimsoll program of a cluster must be given the same.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Names")]
pub struct NameArgs {
    /// The resource that pods ask for, in units of GPU memory. For another name, set `managedResources` in
    /// kube-scheduler's configuration too.
    #[arg(
        long,
        env = "PLIMSOLL_GPU_RESOURCE",
        default_value = "aliyun.com/gpu-mem",
        value_name = "RESOURCE"
    )]
    pub gpu_resource: String,

    /// The domain of our own annotations and CDI devices. The keys `ALIYUN_COM_GPU_MEM_*` are fixed: other tools read
    /// them.
    #[arg(
        long,
        env = "PLIMSOLL_ANNOTATION_PREFIX",
        default_value = "plimsoll.dev",
        value_name = "DOMAIN"
    )]
    pub annotation_prefix: String,
}

impl NameArgs {
    /// The names as `placement` takes them.
    #[must_use]
    pub fn names(&self) -> Names {
        Names::new(&self.gpu_resource, &self.annotation_prefix)
    }
}

/// How load decides and how its readings are written. The annotator and the extender must be given the same.
#[derive(Debug, Clone, clap::Args)]
pub struct LoadArgs {
    /// The policy in YAML: a SchedulingPolicy, or crane's DynamicSchedulerPolicy. Read again when it changes; a
    /// faulty change is logged and counted, and the policy before it stays.
    #[arg(
        long,
        env = "PLIMSOLL_POLICY_FILE",
        default_value = "/etc/plimsoll/policy.yaml",
        value_name = "PATH"
    )]
    pub policy_file: PathBuf,

    /// The time zone of the times in load annotations. They are written as if they were UTC, so the annotator and the
    /// extender must agree; crane's own default is Asia/Shanghai. In a zone with summer time, the hour that comes twice
    /// in autumn is read as its first time: readings are stale for that hour.
    #[arg(
        long,
        env = "PLIMSOLL_TIME_ZONE",
        default_value = "UTC",
        value_parser = zone,
        value_name = "ZONE"
    )]
    pub time_zone: TimeZone,
}

impl LoadArgs {
    /// Reads and writes readings with times of that zone.
    #[must_use]
    pub fn codec(&self) -> ReadingCodec {
        ReadingCodec::new(self.time_zone.clone())
    }
}

fn zone(text: &str) -> Result<TimeZone, String> {
    // The default must work on machines without a time zone database.
    if text == "UTC" {
        return Ok(TimeZone::UTC);
    }
    TimeZone::get(text).map_err(|_| {
        "unknown; expected a name of the time zone database, such as `UTC` or `Asia/Shanghai` \
         (names other than UTC need /usr/share/zoneinfo)"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct All {
        #[command(flatten)]
        api: ApiArgs,
        #[command(flatten)]
        names: NameArgs,
        #[command(flatten)]
        load: LoadArgs,
    }

    fn parse(flags: &[&str]) -> Result<All, clap::Error> {
        All::try_parse_from([&["program"], flags].concat())
    }

    #[test]
    fn the_defaults_are_the_fields_own() {
        let all = parse(&[]).unwrap();
        assert_eq!(all.names.names(), Names::default());
        assert_eq!(all.load.time_zone, TimeZone::UTC);
        assert_eq!(all.api.kubeconfig, None);
    }

    #[test]
    fn an_unknown_zone_is_refused() {
        let error = parse(&["--time-zone=Mars/Olympus"]).unwrap_err().to_string();
        assert!(error.contains("Asia/Shanghai"), "{error}");
    }
}
