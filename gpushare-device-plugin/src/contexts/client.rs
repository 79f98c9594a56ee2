//! Asks `gpu-probe contexts` for one context.
//!
//! Invariant: the answer is bounded in length and in time, and anything but an answer is an error.

use std::path::Path;
use std::time::Duration;

use nvml::cuda::{Answer, MAX_LINE, Question};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// The time for an answer: `gpu-probe` gives a context 30 seconds, and five more to a process that it kills.
const LIMIT: Duration = Duration::from_secs(60);

/// The answer.
///
/// # Errors
/// Why there is none.
pub(super) async fn ask(socket: &Path, question: &Question) -> Result<Answer, String> {
    let line = match timeout(LIMIT, exchange(socket, question)).await {
        Ok(line) => line.map_err(|error| format!("{}: {error}", socket.display()))?,
        Err(_) => return Err(format!("{}: no answer within {LIMIT:?}", socket.display())),
    };
    let answer = line.strip_suffix('\n').and_then(Answer::parse);
    answer.ok_or_else(|| format!("{}: what answers there is not gpu-probe", socket.display()))
}

async fn exchange(socket: &Path, question: &Question) -> std::io::Result<String> {
    let mut stream = UnixStream::connect(socket).await?;
    stream.write_all(format!("{question}\n").as_bytes()).await?;
    let mut line = String::new();
    BufReader::new(stream.take(MAX_LINE as u64 + 1)).read_line(&mut line).await?;
    Ok(line)
}
