//! What the kernel holds of a connection, and for how long.

use std::time::Duration;

use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};

use super::Limits;

/// The longest segment, in bytes: longer than those of any network card, and shorter than the 64 KiB of a node's talk
/// with itself.
const LONGEST_SEGMENT: usize = 16 << 10;

/// Bounds the buffers of all connections to come, which have them from their listener.
pub(super) fn bound(listener: &TcpListener, limits: &Limits) {
    let socket = SockRef::from(listener);
    let _ = socket.set_send_buffer_size(limits.unread_bytes);
    if let Some(bytes) = limits.unseen_bytes {
        let _ = socket.set_recv_buffer_size(bytes);
    }
    // Two go into what the kernel takes: a reader of one waits 40 ms for a second before it says that it has read.
    let segment = LONGEST_SEGMENT.min(limits.unread_bytes);
    let _ = socket.set_tcp_mss(u32::try_from(segment).unwrap_or(u32::MAX));
}

/// Sets what a connection does not have from its listener.
pub(super) fn tune(stream: &TcpStream, limits: &Limits) {
    // Answers are whole: waiting to fill a segment would only add latency.
    let _ = stream.set_nodelay(true);
    // A client that reads nothing, or is gone without a word, must not hold what is written for ever.
    let _ = SockRef::from(stream).set_tcp_user_timeout(Some(limits.unread));
}

/// Makes the connection's end a reset: for a close the kernel would keep what is not read.
pub(super) fn forget(stream: &TcpStream) {
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}
