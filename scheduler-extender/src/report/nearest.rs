//! What would have to change for a pod to find a node, in words.

use api::decisions::{Asks, Lack, Nearest};

/// What is nearest to accepting a pod that asks this of GPUs.
pub fn in_words(nearest: &Nearest, asks: Option<&Asks>) -> String {
    let (units, count) = asks.map_or((0, 0), |asks| (asks.units, asks.count));
    let mib = if asks.is_some_and(|asks| asks.in_mib) { " MiB" } else { "" };
    match nearest {
        Nearest::Gpu { node, index, free, lack } => match lack {
            Lack::Units => format!("1 GPU with {units}{mib} free: {node}/{index} has {free}"),
            Lack::Empty => {
                format!(
                    "1 GPU that no pod is on: {node}/{index} is emptiest, with {free}{mib} free"
                )
            }
            Lack::Unplaced => format!(
                "once pods without a GPU have theirs on {node}: {node}/{index} has {free} free"
            ),
            Lack::Other => format!("{node}/{index} is nearest, with {free} free"),
        },
        Nearest::Gpus { node, fit, lack } => match lack {
            Lack::Units => {
                format!("{count} GPUs with {units}{mib} free on a node: {node} has {fit}")
            }
            Lack::Empty => {
                format!("{count} GPUs that no pod is on, of one node: {node} has {fit}")
            }
            Lack::Unplaced => format!(
                "once pods without a GPU have theirs on {node}: {fit} GPUs there have {units} free"
            ),
            Lack::Other => format!("{node} is nearest, where {fit} of {count} GPUs fit"),
        },
        Nearest::Limit { node, metric, load, max } => {
            // The limit with the policy's digits, without errors of binary fractions; no load of -0.0%.
            let max = (max * 1e8).round() / 1e6;
            let load = (load * 1e3).round() / 10.0 + 0.0;
            format!("{metric} at most {max}%: {node} has {load:.1}%")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lacking_is_told_as_it_is() {
        let asks = Asks { units: 20, count: 2, in_mib: false, cores: 0, exclusive: false };
        let said = |nearest: Nearest| in_words(&nearest, Some(&asks));
        let node = || "gpu-1".to_owned();
        let gpu = |lack| said(Nearest::Gpu { node: node(), index: 0, free: 17, lack });
        let theirs = "once pods without a GPU have theirs on gpu-1: ";
        assert_eq!(gpu(Lack::Units), "1 GPU with 20 free: gpu-1/0 has 17");
        assert_eq!(gpu(Lack::Empty), "1 GPU that no pod is on: gpu-1/0 is emptiest, with 17 free");
        assert_eq!(gpu(Lack::Unplaced), format!("{theirs}gpu-1/0 has 17 free"));
        assert_eq!(gpu(Lack::Other), "gpu-1/0 is nearest, with 17 free");
        let gpus = |lack| said(Nearest::Gpus { node: node(), fit: 1, lack });
        assert_eq!(gpus(Lack::Units), "2 GPUs with 20 free on a node: gpu-1 has 1");
        assert_eq!(gpus(Lack::Empty), "2 GPUs that no pod is on, of one node: gpu-1 has 1");
        assert_eq!(gpus(Lack::Unplaced), format!("{theirs}1 GPUs there have 20 free"));
        assert_eq!(gpus(Lack::Other), "gpu-1 is nearest, where 1 of 2 GPUs fit");
        let in_mib = Asks { in_mib: true, ..asks.clone() };
        let nearest = Nearest::Gpu { node: node(), index: 0, free: 17, lack: Lack::Units };
        assert_eq!(in_words(&nearest, Some(&in_mib)), "1 GPU with 20 MiB free: gpu-1/0 has 17");
        let metric = || "cpu_usage_avg_5m".to_owned();
        let limit = |load, max| said(Nearest::Limit { node: node(), metric: metric(), load, max });
        assert_eq!(limit(0.804, 0.57), "cpu_usage_avg_5m at most 57%: gpu-1 has 80.4%");
        assert_eq!(limit(-0.0003, 0.655), "cpu_usage_avg_5m at most 65.5%: gpu-1 has 0.0%");
    }
}
