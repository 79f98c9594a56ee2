//! `plimsoll capacity`: how many more pods of a size fit.

use std::io::Write;

use anyhow::{Context, Result};
use api::capacity::{Capacity, Question, Room};

use super::{short_model, write_doubts};
use crate::args::gpus;
use crate::cluster_access::Cluster;
use crate::extender;
use crate::output::{refuse_names, write_form};
use crate::table;

/// Tells what fits.
///
/// # Errors
///
/// If the extender does not answer.
pub(crate) fn capacity(flags: &gpus::Capacity, output: &mut dyn Write) -> Result<()> {
    refuse_names(flags.query.format)?;
    let cluster = Cluster::new(&flags.query.access);
    let nodes = flags.selector.as_ref().map(|labels| cluster.nodes_with(labels)).transpose()?;
    let question = Question {
        sizes: vec![flags.size],
        count: flags.count,
        cores: flags.cores,
        node_names: nodes.map(|names| names.into_iter().collect()),
    };
    let mut answers = ask(&cluster, &question)?;
    let answer = answers.pop().context("the extender's answer is empty")?;
    if write_form(&answer, [], flags.query.format, output)? {
        return Ok(());
    }
    let heading = ["MODEL", "GPUS", "FREE UNITS", "PODS THAT FIT", "LARGEST SIZE"];
    table::write(output, heading, answer.models.iter().chain([&answer.total]).map(row))?;
    if answer.left_out > 0 {
        writeln!(output, "\n{} GPUs take no pods now, and are left out.", answer.left_out)?;
    }
    writeln!(output, "\nBy GPUs alone: CPU, memory, taints and load may let fewer pods in.")?;
    write_doubts(&answer.replica, output)
}

/// What fits of each size, in their order.
pub(super) fn ask(cluster: &Cluster, question: &Question) -> Result<Vec<Capacity>> {
    extender::post(cluster, "/v1/capacity", question)
}

fn row(room: &Room) -> [String; 5] {
    [
        short_model(&room.model).to_owned(),
        room.gpus.to_string(),
        room.free_units.to_string(),
        room.pods.to_string(),
        room.largest.to_string(),
    ]
}
