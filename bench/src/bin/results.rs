//! Writes what `make bench` measures into `bench/RESULTS.md` and `bench/codecs.md`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use bench::results::Figures;
use clap::Parser;

#[derive(Debug, Parser)]
#[command(about = "Writes what `make bench` measures into its pages")]
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
    /// The page of codecs.
    #[arg(long, default_value = "bench/codecs.md")]
    codecs: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let Args { calls, criterion, when, page, codecs } = Args::parse();
    let figures = Figures { calls, criterion };
    let fresh = figures.write_into(&read(&page)?, &when)?;
    let fresh_codecs = figures.write_codecs_into(&read(&codecs)?, &when)?;
    fs::write(&page, fresh).with_context(|| page.display().to_string())?;
    fs::write(&codecs, fresh_codecs).with_context(|| codecs.display().to_string())
}

fn read(page: &Path) -> anyhow::Result<String> {
    fs::read_to_string(page).with_context(|| page.display().to_string())
}
