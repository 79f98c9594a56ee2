//! The `plimsoll-demo` program.

use std::io::{Write, stderr};
use std::process::ExitCode;

use demo::{Args, run};

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::of_command_line()).await {
        Ok(code) => code,
        Err(error) => {
            // `eprintln!` panics where stderr is closed.
            let _ = writeln!(stderr(), "plimsoll-demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}
