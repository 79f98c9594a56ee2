//! The `plimsoll` command.

use std::process::ExitCode;

use clap::Parser;
use cli::{Args, run};

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("plimsoll: {error:#}");
            ExitCode::FAILURE
        }
    }
}
