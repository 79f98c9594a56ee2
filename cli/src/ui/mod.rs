//! `plimsoll ui`: the extender's web page, through a port-forward.

mod gate;

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use self::gate::Gate;
use crate::args::operate::Ui;
use crate::cluster_access::Cluster;

/// Where the extender serves its page.
const PATH: &str = "/ui/";

/// Forwards the port, tells an address with a token, and waits until the port-forward ends.
///
/// # Errors
///
/// If there is no port-forward to the extender, or it ends, or the port is taken.
pub(crate) fn ui(flags: &Ui, output: &mut dyn Write) -> Result<()> {
    let cluster = Cluster::new(&flags.access);
    if let Some(url) = &flags.access.extender {
        return tell(&format!("{url}{PATH}"), flags.open, output);
    }
    let forward = cluster.forward_to_leader()?;
    let gate = Gate::open(flags.port, forward.ports()[0])?;
    let url = gate.url(PATH)?;
    gate.serve();
    tell(&url, flags.open, output)?;
    writeln!(output, "Ctrl-C ends it.")?;
    output.flush()?;
    forward.wait();
    bail!("the port-forward has ended, as where the extender's pod did: run this again")
}

fn tell(url: &str, open: bool, output: &mut dyn Write) -> Result<()> {
    writeln!(output, "{url}")?;
    output.flush()?;
    if open {
        let program = if cfg!(target_os = "macos") {
            "open"
        } else if cfg!(windows) {
            "explorer"
        } else {
            "xdg-open"
        };
        let mut command = Command::new(program);
        command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if command.spawn().is_err() {
            writeln!(output, "{program} does not start a browser here: open the address by hand")?;
        }
    }
    Ok(())
}
