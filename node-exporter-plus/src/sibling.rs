//! Hands over to the build with TLS, a program beside this one.
//!
//! A kernel maps most of a program's file as soon as some of it runs, so TLS would cost every node 0.4 MiB of memory,
//! also where nobody uses it. Therefore two builds: the process becomes the other one.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context as _, anyhow};

/// The name of the build with TLS.
const SIBLING: &str = "node-exporter-plus-tls";

/// Becomes the build with TLS, with the same arguments and environment. Returns only to say why it could not.
#[must_use]
pub fn hand_over() -> anyhow::Error {
    let sibling = match std::env::current_exe().context("where this program is") {
        Ok(own) => own.with_file_name(SIBLING),
        Err(error) => return error,
    };
    let error = Command::new(&sibling).args(std::env::args_os().skip(1)).exec();
    let needed = format!("--web.tls-cert-file needs {}, the build with TLS", sibling.display());
    anyhow!(error).context(needed)
}
