//! Writes the rows of `bench/RESULTS.md` that `make bench` measures.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use bench::results::Figures;
use clap::Parser;

#[derive(Debug, Parser)]
#[command(about = "Writes the rows of bench/RESULTS.md that `make bench` measures")]
struct Args {
    /// The figures of `cargo bench --bench extender_http -- --json FILE`.
    #[arg(long)]
    calls: PathBuf,
    /// The folder in which criterion keeps its figures.
    #[arg(long)]
    criterion: PathBuf,
    /// Which commit was measured, and when.
    #[arg(long)]
    when: String,
    /// The page.
    #[arg(long, default_value = "bench/RESULTS.md")]
    page: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let Args { calls, criterion, when, page } = Args::parse();
    let text = fs::read_to_string(&page).with_context(|| page.display().to_string())?;
    let fresh = Figures { calls, criterion }.write_into(&text, &when)?;
    fs::write(&page, fresh).with_context(|| page.display().to_string())
}
