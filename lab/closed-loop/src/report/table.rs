//! Tables for people.

use std::fmt;

use super::{LEAST_HOT_MINUTES, Summary};
use crate::cell::Cell;
use crate::policies::Entry;
use crate::world::{LEVELS, REPLICAS, Spread, SpreadFigures};

/// Tables of each cell, and some of all cells.
pub struct Tables<'a>(pub &'a [Summary]);

impl fmt::Display for Tables<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cells = cells(self.0);
        for cell in &cells {
            of_cell(f, *cell, self.0)?;
        }
        if cells.len() > 1 {
            of_all_cells(f, &cells, self.0)?;
        }
        Ok(())
    }
}

fn cells(summaries: &[Summary]) -> Vec<Cell> {
    let mut cells: Vec<Cell> = summaries.iter().map(|summary| summary.cell).collect();
    cells.dedup();
    cells
}

/// The name of a policy in tables.
fn title(policy: &str) -> String {
    policy.parse::<Entry>().map_or_else(|_| policy.to_owned(), |entry| entry.title())
}

/// The width of the column of names.
fn width(summaries: &[Summary]) -> usize {
    summaries.iter().map(|row| title(&row.policy).chars().count()).max().unwrap_or(0)
}

fn of_cell(f: &mut fmt::Formatter<'_>, cell: Cell, summaries: &[Summary]) -> fmt::Result {
    let rows: Vec<&Summary> = summaries.iter().filter(|summary| summary.cell == cell).collect();
    let Some(first) = rows.first() else { return Ok(()) };
    writeln!(
        f,
        "{cell}, {} seeds; mean use {:.1}% of {}%",
        first.seeds, first.mean_use, cell.percent
    )?;
    writeln!(
        f,
        "node-minutes above 80% by one pod alone, which no placement avoids: {:.0}",
        first.alone_minutes[1]
    )?;
    if first.left_out {
        writeln!(f, "left out of comparisons: fewer than {LEAST_HOT_MINUTES} hot minutes a seed")?;
    }
    let width = width(summaries);
    let head = "node-minutes  >65%      >80%    >100% | by the first >65% >80% >100%  better | deviation  herd | wait mean  p50  p99 min  pending | evicted 2x  placements  writes/h";
    writeln!(f, "{:<width$} {head}", "")?;
    for row in &rows {
        let [warm, hot, full] = row.hot_minutes;
        let [warm_ratio, hot_ratio, full_ratio] =
            row.ratios.map(|ratio| ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}")));
        let [mean, median, p99] = row.wait;
        writeln!(
            f,
            "{:<width$} {warm:>17.0} {hot:>9.0} {full:>8.0} | {warm_ratio:>17} {hot_ratio:>4} {full_ratio:>5} {:>4}/{:<2} | {:>9.2} {:>5.1} | {mean:>9.2} {median:>4.1} {p99:>8.1} {:>8} | {:>10} {:>11} {:>9}",
            title(&row.policy),
            row.better,
            row.seeds,
            row.deviation,
            row.herd_width,
            row.pending,
            row.evicted_twice,
            row.placements,
            row.writes_an_hour.map_or("-".to_owned(), |writes| format!("{writes:.1}")),
        )?;
    }
    spread(f, width, &rows)?;
    writeln!(f)
}

/// How the replicas of one Deployment spread.
fn spread(f: &mut fmt::Formatter<'_>, width: usize, rows: &[&Summary]) -> fmt::Result {
    let [three, ten, burst] = REPLICAS;
    writeln!(
        f,
        "{:<width$} most on a node: {three:>4} {ten:>5} {burst:>5}  roll worst | cold worst | beyond stock  nodes by stock  in a zone",
        ""
    )?;
    for row in rows {
        let each = row.spreads.rollouts.map(SpreadFigures::from);
        let all = SpreadFigures::from(Spread::sum(&row.spreads.rollouts));
        let cold = SpreadFigures::from(Spread::sum(&row.spreads.beside_cold));
        writeln!(
            f,
            "{:<width$} {:>20.2} {:>5.2} {:>5.2} {:>5.2} {:>5.1} | {:>4.2} {:>5.1} | {:>6} {:>5} {:>9.2} {:>5.2} {:>10.2}",
            title(&row.policy),
            each[0].most,
            each[1].most,
            each[2].most,
            all.most,
            all.worst,
            cold.most,
            cold.worst,
            all.beyond_stock,
            cold.beyond_stock,
            all.nodes_by_stock,
            cold.nodes_by_stock,
            all.in_zone,
        )?;
    }
    Ok(())
}

/// The figures of all cells: hot minutes by those of the first row, whose own are a mean of the seeds, waits, and
/// rollouts.
fn of_all_cells(f: &mut fmt::Formatter<'_>, cells: &[Cell], summaries: &[Summary]) -> fmt::Result {
    for (level, percent) in LEVELS.map(|level| 100.0 * level).into_iter().enumerate() {
        writeln!(
            f,
            "Node-minutes above {percent:.0}%, by those of the first row (whose own are a mean of the seeds)"
        )?;
        of_level(f, level, cells, summaries)?;
    }
    writeln!(
        f,
        "({LEAST_HOT_MINUTES} minutes above 80% a seed at least; cells with fewer are left out: -)"
    )?;
    writeln!(f, "Mean wait in minutes")?;
    rows(f, cells, summaries, &[], |row| format!("{:.2}", row.wait[0]), |_, _| String::new())?;
    let most =
        |spreads: &[Spread]| format!("{:.2}", SpreadFigures::from(Spread::sum(spreads)).most);
    writeln!(f, "Most replicas of a rollout on one node, by an even spread")?;
    let of_row = |row: &Summary| most(&row.spreads.rollouts);
    rows(f, cells, summaries, &[], of_row, |_, _| String::new())?;
    writeln!(f, "The same beside a cold node")?;
    let of_row = |row: &Summary| most(&row.spreads.beside_cold);
    rows(f, cells, summaries, &[], of_row, |_, _| String::new())
}

fn of_level(
    f: &mut fmt::Formatter<'_>,
    level: usize,
    cells: &[Cell],
    summaries: &[Summary],
) -> fmt::Result {
    rows(
        f,
        cells,
        summaries,
        &percents(cells),
        |row| ratio(level, row, &summaries[0].policy),
        |percent, name| sum_ratio(level, percent, name, summaries),
    )
}

/// A row for each policy, with a column for each cell and for each use.
fn rows(
    f: &mut fmt::Formatter<'_>,
    cells: &[Cell],
    summaries: &[Summary],
    percents: &[u32],
    of_row: impl Fn(&Summary) -> String,
    of_percent: impl Fn(u32, &str) -> String,
) -> fmt::Result {
    let width = width(summaries);
    write!(f, "{:<width$}", "")?;
    for cell in cells {
        write!(f, " {:>9}", cell.to_string())?;
    }
    for percent in percents {
        write!(f, " {:>9}", format!("all {percent}%"))?;
    }
    writeln!(f)?;
    let mut names: Vec<&str> = Vec::new();
    for summary in summaries {
        if !names.contains(&summary.policy.as_str()) {
            names.push(&summary.policy);
        }
    }
    for name in names {
        write!(f, "{:<width$}", title(name))?;
        for cell in cells {
            let found = summaries.iter().find(|row| row.cell == *cell && row.policy == name);
            write!(f, " {:>9}", found.map_or("-".to_owned(), &of_row))?;
        }
        for percent in percents {
            write!(f, " {:>9}", of_percent(*percent, name))?;
        }
        writeln!(f)?;
    }
    writeln!(f)
}

/// The uses of several cells.
fn percents(cells: &[Cell]) -> Vec<u32> {
    let mut percents: Vec<u32> = cells.iter().map(|cell| cell.percent).collect();
    percents.sort_unstable();
    percents.dedup();
    percents
}

/// The ratio of the sums over the cells of that use, but for those that are left out.
fn sum_ratio(level: usize, percent: u32, policy: &str, summaries: &[Summary]) -> String {
    let own = hot_minutes(level, percent, policy, summaries);
    let reference = summaries.first().map_or("", |row| &row.policy);
    let reference = hot_minutes(level, percent, reference, summaries);
    if reference > 0.0 { format!("{:.2}", own / reference) } else { "-".to_owned() }
}

/// The sum of a policy's minutes over a level in the cells of that use, but for those that are left out.
fn hot_minutes(level: usize, percent: u32, policy: &str, summaries: &[Summary]) -> f64 {
    let rows = summaries.iter().filter(|row| row.cell.percent == percent && !row.left_out);
    rows.filter(|row| row.policy == policy).map(|row| row.hot_minutes[level]).sum()
}

fn ratio(level: usize, row: &Summary, reference: &str) -> String {
    match row.ratios[level] {
        _ if row.policy == reference => {
            format!("{:.0}", row.hot_minutes[level] / row.seeds as f64)
        }
        Some(ratio) if !row.left_out => format!("{ratio:.2}"),
        _ => "-".to_owned(),
    }
}
