//! Flags that several commands share: which cluster, which namespace, which form of output.

use placement::names::limits;

use super::{extender_url, namespace};

/// How kubectl connects.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct Connection {
    /// The context of kubectl's configuration.
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,

    /// kubectl's configuration.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<String>,

    /// A user to impersonate.
    #[arg(long = "as", value_name = "USER")]
    pub(crate) as_user: Option<String>,

    /// A group to impersonate. It can be given several times.
    #[arg(long = "as-group", value_name = "GROUP")]
    pub(crate) as_groups: Vec<String>,
}

/// How the cluster and the extender are reached.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct Access {
    /// How kubectl connects.
    #[command(flatten)]
    pub(crate) connection: Connection,

    /// Plimsoll's namespace [default: that of its extender]
    #[arg(long, value_name = "NAME", value_parser = namespace)]
    pub(crate) plimsoll_namespace: Option<String>,

    /// Where the extender answers, in place of a port-forward by kubectl.
    #[arg(long, env = "PLIMSOLL_EXTENDER", hide_env = true, value_name = "URL", value_parser = extender_url)]
    pub(crate) extender: Option<String>,
}

/// Of which namespaces pods are.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Namespaces {
    /// The namespace [default: that of kubectl's context]
    #[arg(long, short = 'n', value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,

    /// All namespaces.
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    pub(crate) all_namespaces: bool,
}

/// The form of what is written.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub(crate) struct Format {
    /// The form [default: a table]
    #[arg(long, short = 'o', value_enum, value_name = "FORM")]
    pub(crate) output: Option<Output>,

    /// As --output=json.
    #[arg(long, hide = true, conflicts_with = "output")]
    pub(crate) json: bool,
}

/// A form in place of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Output {
    /// JSON, for programs.
    Json,
    /// YAML.
    Yaml,
    /// A table with more columns.
    Wide,
    /// Names alone, one a line.
    Name,
}

impl Format {
    /// The form that is asked for.
    pub(crate) fn chosen(self) -> Option<Output> {
        if self.json { Some(Output::Json) } else { self.output }
    }

    /// Whether the table has more columns.
    pub(crate) fn is_wide(self) -> bool {
        self.output == Some(Output::Wide)
    }
}

/// What is asked, and the form of the answer.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Query {
    #[command(flatten)]
    pub(crate) format: Format,

    #[command(flatten)]
    pub(crate) access: Access,
}

/// The name of a node: of the letters that the API server admits, so that it can stand in a path.
pub(crate) fn node_name(text: &str) -> Result<String, String> {
    let fits = (1..=limits::NAME).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
    if fits {
        Ok(text.to_owned())
    } else {
        Err("expected a node's name: letters, digits, `-` and `.`".to_owned())
    }
}
