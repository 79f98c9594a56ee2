//! Flags of `convert`.

use std::path::PathBuf;

use clap::Parser;

/// Flags of `convert`.
#[derive(Debug, Parser)]
#[command(after_help = CONVERT_EXAMPLES)]
pub(crate) struct ConvertManifests {
    /// The manifests; `-` reads stdin.
    #[arg(long, short = 'f', default_value = "-", value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// GPU memory of one unit, in MiB, as the device plugin has it.
    #[arg(long, default_value_t = 1024, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) unit_mib: u32,

    /// The resource that pods ask for, in units.
    #[arg(
        long,
        env = "PLIMSOLL_GPU_RESOURCE",
        hide_env = true,
        default_value = "aliyun.com/gpu-mem",
        value_name = "RESOURCE"
    )]
    pub(crate) gpu_resource: String,

    /// The domain of Plimsoll's annotations, of the driver and of the DeviceClass.
    #[arg(
        long,
        env = "PLIMSOLL_ANNOTATION_PREFIX",
        hide_env = true,
        default_value = "plimsoll.dev",
        value_name = "DOMAIN"
    )]
    pub(crate) annotation_prefix: String,
}

const CONVERT_EXAMPLES: &str = "\
Comments of a document that is converted are lost; other documents keep their text.

Examples:
  # Manifests in a folder of their own
  plimsoll convert -f train.yaml > claims/train.yaml

  # A chart's
  helm template my-release my-chart | plimsoll convert | kubectl apply -f -

  # Where a unit is 256 MiB
  plimsoll convert -f train.yaml --unit-mib 256";
