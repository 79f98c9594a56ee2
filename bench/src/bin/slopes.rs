//! Writes what `make slopes` measures into `docs/scale.md`.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use bench::slopes::Slopes;
use clap::Parser;

#[derive(Debug, Parser)]
#[command(about = "Writes what `make slopes` measures into docs/scale.md")]
struct Args {
    /// Files of figures, of `extender_http --slopes FILE` and `rounds --slopes FILE`.
    #[arg(required = true)]
    figures: Vec<PathBuf>,
    /// The folder in which criterion keeps its figures.
    #[arg(long)]
    criterion: PathBuf,
    /// Which commit was measured, and when.
    #[arg(long)]
    when: String,
    /// The page.
    #[arg(long, default_value = "docs/scale.md")]
    page: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let Args { figures, criterion, when, page } = Args::parse();
    let slopes = Slopes::read(&figures, &criterion)?;
    let text = fs::read_to_string(&page).with_context(|| page.display().to_string())?;
    let fresh = slopes.write_into(&text, &when)?;
    fs::write(&page, fresh).with_context(|| page.display().to_string())
}
