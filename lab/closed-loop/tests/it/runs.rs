//! Whole runs of one day of 50 nodes.

use closed_loop::cell::Cell;
use closed_loop::cluster::Scale;
use closed_loop::policies::{Entry, KINDS};
use closed_loop::simulation::Simulation;
use closed_loop::workload::Workload;
use closed_loop::world::{Figures, InTree};

fn workload(cell: &str) -> Workload {
    Workload::new(cell.parse::<Cell>().unwrap(), 1, Scale::QUICK)
}

fn policies(names: &[&str]) -> Vec<Entry> {
    names.iter().map(|name| name.parse().unwrap()).collect()
}

fn run(workload: &Workload, policies: &[Entry]) -> Vec<Figures> {
    Simulation::new(workload, InTree::All, policies).unwrap().run().0
}

#[test]
fn requests_never_exceed_a_nodes_capacity_and_no_pod_is_lost() {
    let workload = workload("S55");
    let all = policies(&KINDS.iter().map(|kind| kind.name).collect::<Vec<_>>());
    let mut simulation = Simulation::new(&workload, InTree::All, &all).unwrap();
    while simulation.step() {
        if simulation.now().is_multiple_of(500) {
            for (world, entry) in simulation.worlds().iter().zip(&all) {
                world.check(&workload).unwrap_or_else(|wrong| panic!("{entry}: {wrong}"));
            }
        }
    }
}

#[test]
fn a_policys_figures_do_not_depend_on_which_others_run() {
    let workload = workload("H40");
    let alone = run(&workload, &policies(&["koordinator-avg"]));
    let others = run(&workload, &policies(&["crane-extender-live", "koordinator-avg", "default"]));
    assert_eq!(alone[0], others[1]);
    assert_ne!(alone[0], others[2]);
}

#[test]
fn achieved_use_is_near_the_target_where_nothing_waits() {
    let workload = workload("U40");
    let figures = run(&workload, &policies(&["default"]));
    assert!((figures[0].mean_use / 40.0 - 1.0).abs() < 0.03, "{}", figures[0].mean_use);
    assert_eq!((figures[0].pending, figures[0].wait_p99), (0, 0.0));
}

#[test]
fn pods_of_nodes_that_reboot_are_bound_again() {
    let workload = workload("U25");
    let figures = run(&workload, &policies(&["default"]));
    // Five nodes of about 20 pods each.
    assert!((50..200).contains(&figures[0].evicted), "{}", figures[0].evicted);
    assert_eq!(figures[0].pending, 0);
}
