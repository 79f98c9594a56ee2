//! What load is typical of the nodes that a pod could go to, by resource.

/// The load that is typical of nodes with these [loads](super::Evaluation::present_load) of one resource: their mean,
/// or their median where that is higher. One idle node among three moves the mean by a third, and must not draw all
/// pods to itself. 0 of no loads. Changes their order.
#[must_use]
pub fn typical_load(loads: &mut [f64]) -> f64 {
    if loads.is_empty() {
        return 0.0;
    }
    let mean = loads.iter().sum::<f64>() / loads.len() as f64;
    let is_even = loads.len().is_multiple_of(2);
    let (below, middle, _) = loads.select_nth_unstable_by(loads.len() / 2, f64::total_cmp);
    let next_below = below.iter().copied().reduce(f64::max).filter(|_| is_even).unwrap_or(*middle);
    mean.max(f64::midpoint(*middle, next_below))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cold_node_makes_no_other_look_hot_and_a_hot_one_does() {
        assert_eq!(typical_load(&mut [0.0, 0.6, 0.6]), 0.6);
        assert_eq!(typical_load(&mut [0.9, 0.3, 0.3]), 0.5);
        // Of two nodes the hotter one is hot.
        assert_eq!(typical_load(&mut [0.25, 0.75]), 0.5);
        assert_eq!(typical_load(&mut [0.75, 0.0, 0.5, 0.75]), 0.625);
        assert_eq!((typical_load(&mut []), typical_load(&mut [0.7])), (0.0, 0.7));
    }
}
