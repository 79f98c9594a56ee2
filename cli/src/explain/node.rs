//! One node in full: each metric with its reading, age and window, and each GPU.

use std::io::Write;

use anyhow::Result;
use api::explain::{
    Basis, ExplainedGpu, ExplainedGpus, GpuOutcome, LimitOutcome, Load, Node, NodeCost, Reading,
    ReadingStatus,
};
use placement::demand::Demand;

use crate::format::{self, duration, printable};
use crate::gpus::closed;
use crate::table::{self, NONE, or_none};

/// Writes all details of the node.
///
/// # Errors
///
/// If `output` cannot be written.
pub(super) fn write(node: &Node, output: &mut dyn Write) -> Result<()> {
    if let Some(load) = &node.load {
        writeln!(output)?;
        let heading =
            ["METRIC", "READING", "AGE", "IN FLIGHT", "POD", "LIMIT", "OUTCOME", "POINTS"];
        table::write(output, heading, metric_rows(load))?;
        for NodeCost { points, text, .. } in &load.costs {
            writeln!(output, "\n{points} points less for {}.", printable(text))?;
        }
    }
    if let Some(gpus) = &node.gpus {
        writeln!(output, "\nThe pod asks for {}.", asked(gpus))?;
        if !gpus.gpus.is_empty() {
            let free = if gpus.in_mib { "FREE/MIB" } else { "FREE/UNITS" };
            let heading = ["", "GPU", "MODEL", free, "UNMANAGED", "FREE COMPUTE", "OUTCOME"];
            table::write(output, heading, gpus.gpus.iter().map(|gpu| gpu_row(gpu, &gpus.chosen)))?;
        }
        match gpus.linked {
            Some(true) => writeln!(output, "\nNVLink connects the chosen GPUs.")?,
            Some(false) => writeln!(output, "\nNVLink does not connect the chosen GPUs.")?,
            None => {}
        }
        if let Some(cost) = gpus.cost {
            writeln!(
                output,
                "\nOn this node it costs pods that are likely to come {}: room that none of them could use, and places that \
                 those with several GPUs will need.",
                parts(cost)
            )?;
        }
    }
    if let Some(cost) = node.cost_to_gpus {
        writeln!(
            output,
            "\nThe CPU that it takes costs pods that are likely to come {} more than on the cheapest node.",
            parts(cost)
        )?;
    }
    if !node.reasons.is_empty() {
        writeln!(output)?;
        for reason in &node.reasons {
            writeln!(output, "Event: {}", printable(reason))?;
        }
    }
    Ok(())
}

/// Formats millionths of a GPU.
fn parts(millionths: i64) -> String {
    format!("{:.2} GPUs", millionths as f64 / 1e6)
}

/// The cells of each metric: of its limit, of its term of the score, or of both.
fn metric_rows(load: &Load) -> Vec<[String; 8]> {
    let mut rows = Vec::new();
    for limit in &load.limits {
        let mut row = metric_row(&limit.metric, &limit.reading, limit.in_flight, limit.pod);
        row[5] = format::limit(limit.max);
        row[6] = of_limit(&limit.metric, limit.outcome).to_owned();
        rows.push(row);
    }
    for term in &load.terms {
        let known = rows.iter().position(|row| row[0] == term.metric);
        if known.is_none() {
            rows.push(metric_row(&term.metric, &term.reading, term.in_flight, term.pod));
        }
        let at = known.unwrap_or(rows.len() - 1);
        rows[at][7] = or_none(term.points.map(|points| format!("{points:.1}")));
    }
    rows
}

/// The cells of a metric without those of a limit and of a term.
fn metric_row(
    metric: &str,
    read: &Reading,
    in_flight: Option<f64>,
    pod: Option<f64>,
) -> [String; 8] {
    let age = or_none(read.age_seconds.map(|seconds| duration(seconds as f64)));
    let [in_flight, pod] = [in_flight, pod].map(|added| or_none(added.map(load)));
    let [limit, outcome, points] = [NONE; 3].map(str::to_owned);
    [metric.to_owned(), reading(read), age, in_flight, pod, limit, outcome, points]
}

fn of_limit(metric: &str, outcome: LimitOutcome) -> &'static str {
    match outcome {
        LimitOutcome::Met => "met",
        LimitOutcome::MetWithoutPod => "met without the pod",
        LimitOutcome::Exceeded => "exceeded",
        LimitOutcome::Unknown if Demand::of_metric(&metric.into()).is_some() => {
            "node's speed not known: passes"
        }
        LimitOutcome::Unknown => "not measured: passes",
        LimitOutcome::UnknownRejected => "not measured: rejected",
        LimitOutcome::Exempt => "exempt",
    }
}

/// As `80.4%`.
fn load(fraction: f64) -> String {
    format!("{}%", format::load(fraction))
}

fn reading(reading: &Reading) -> String {
    let value = reading.value.map_or_else(|| "infinite".to_owned(), load);
    match reading.status {
        ReadingStatus::Fresh => value,
        ReadingStatus::Stale => format!("{value} stale"),
        ReadingStatus::Missing => NONE.to_owned(),
        ReadingStatus::NotFetched => "not fetched".to_owned(),
    }
}

/// As `4 on each of 2 GPUs that no other pod is on, and 30% of their compute`.
fn asked(gpus: &ExplainedGpus) -> String {
    let count = match gpus.count {
        1 => "one GPU".to_owned(),
        count => format!("each of {count} GPUs"),
    };
    let alone = if gpus.exclusive { " that no other pod is on" } else { "" };
    let cores = match gpus.asked_cores {
        0 => String::new(),
        cores if gpus.count == 1 => format!(", and {cores}% of its compute"),
        cores => format!(", and {cores}% of their compute"),
    };
    match (gpus.in_mib, gpus.exclusive) {
        (true, true) => format!("all memory of {count}{cores}"),
        (true, false) => format!("{} MiB on {count}{cores}", gpus.asked),
        (false, _) => format!("{} on {count}{alone}{cores}", gpus.asked),
    }
}

fn gpu_row(gpu: &ExplainedGpu, chosen: &[u32]) -> [String; 7] {
    let outcome = match gpu.outcome {
        GpuOutcome::Fits => "fits",
        GpuOutcome::TooLittleFree => "too little free",
        GpuOutcome::Unhealthy => "unhealthy",
        GpuOutcome::Closed => gpu.closed.map_or("closed", closed),
        GpuOutcome::WeakIsolation => "weaker isolation",
        GpuOutcome::NotAccepted => "not accepted",
        GpuOutcome::TooFewCores => "too little compute",
        GpuOutcome::InUse => "in use",
        GpuOutcome::BeyondUnits => "beyond units",
        GpuOutcome::OtherSharing => "shared in the other way",
        GpuOutcome::TooManyClients => "too many MPS clients",
    };
    let mark = if chosen.contains(&gpu.index) { "*" } else { "" };
    let free = format!("{}/{}", gpu.free, gpu.units);
    let index = gpu.index.to_string();
    let model = gpu.model.clone();
    let cores = format!("{}%", gpu.free_cores);
    let mut unmanaged = 0_u64;
    for charge in &gpu.charges {
        if charge.basis == Basis::Unmanaged {
            unmanaged += u64::from(charge.units);
        }
    }
    [mark.to_owned(), index, model, free, unmanaged.to_string(), cores, outcome.to_owned()]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_asked_by_claims_is_in_mib() {
        let of = |exclusive: bool, count: u32| {
            let gpus = json!({ "asked": 4096, "inMib": true, "exclusive": exclusive, "count": count, "cards": [],
                "score": 0, "askedCores": 30 });
            asked(&serde_json::from_value(gpus).unwrap())
        };
        assert_eq!(of(false, 1), "4096 MiB on one GPU, and 30% of its compute");
        assert_eq!(of(true, 2), "all memory of each of 2 GPUs, and 30% of their compute");
    }
}
