//! What a call of Filter and of Prioritize costs over HTTP, beside an extender that parses the names and echoes them.
//!
//! Both are processes of their own, this program in another role: the extender is wired as in its `main`, and reads its
//! nodes from a stand-in of the API server. Their CPU is the kernel's count of it (`/proc/PID/task/*/schedstat`), their
//! memory `VmRSS`. They are asked in turns over one kept connection each, with the same bytes.

#![allow(clippy::print_stdout, reason = "a benchmark is no library, and prints its figures")]

mod api;
mod client;
mod cluster;
mod echo;
mod large;
mod load;
mod memory;
mod process;
mod report;
mod slopes;
mod state;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(about = "CPU, latency and memory of the extender over HTTP, beside an echo")]
struct Args {
    #[command(subcommand)]
    role: Option<Role>,
    /// Nodes of the cluster, all of which every call names.
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1_000, 5_000])]
    nodes: Vec<usize>,
    /// How often each verb of each is measured: 64 calls each time.
    #[arg(long, default_value_t = 8)]
    rounds: usize,
    /// Every order of names and every cluster, in place of the usual ones.
    #[arg(long)]
    all: bool,
    /// Bound pods in the cluster.
    #[arg(long, default_value_t = 0)]
    pods: usize,
    /// Give each node GPUs, let every tenth pod hold a part of one, and ask about pods that want a part.
    #[arg(long)]
    gpu: bool,
    /// Have so many ResourceClaims hold parts of the GPUs, and ask about pods that want a part by one.
    #[arg(long, default_value_t = 0, conflicts_with = "gpu")]
    claims: usize,
    /// Where nodes are over a limit, have the echo answer reasons too, and so as many bytes as the extender.
    #[arg(long)]
    echo_rejects: bool,
    /// Measure memory alone: with the cluster read, then with a thousand pods decided about.
    #[arg(long)]
    memory: bool,
    /// Measure what the page's requests cost, alone.
    #[arg(long)]
    state: bool,
    /// Measure what waiting pods of 1.5 MB cost others, alone.
    #[arg(long)]
    large: bool,
    /// Measure what grows with the number of nodes, alone, and write it into this file.
    #[arg(long, value_name = "FILE")]
    slopes: Option<PathBuf>,
    /// Write the CPU of each call into this file too.
    #[arg(long)]
    json: Option<PathBuf>,
    /// The extender's program, in place of this one in its role.
    #[arg(long)]
    extender: Option<PathBuf>,
    /// What `cargo bench` adds.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// The extender, with its own flags.
    #[command(disable_help_flag = true)]
    Extender {
        /// Its flags.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        flags: Vec<String>,
    },
    /// The echo.
    Echo {
        /// Answer every third name with a reason.
        #[arg(long)]
        rejects: bool,
    },
}

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match args.role {
        Some(Role::Extender { flags }) => return process::be_extender(&flags),
        Some(Role::Echo { rejects }) => echo::serve(rejects),
        None if args.slopes.is_some() => slopes::measure(&args),
        None if args.memory => memory::measure(&args),
        None if args.state => state::measure(&args),
        None if args.large => large::measure(&args),
        None => load::measure(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
