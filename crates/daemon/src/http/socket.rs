//! Socket options: what the kernel buffers for a connection, and for how long.
//!
//! All are hints. Where the kernel refuses one, the server works with the kernel's own bound.

use std::time::Duration;

use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};

use super::Limits;

/// The longest segment, in bytes: longer than those of any network card, shorter than the 64 KiB of the loopback
/// device.
const LONGEST_SEGMENT: usize = 16 << 10;

/// Bounds the buffers of all later connections, which inherit them from their listener.
pub(super) fn limit_buffers(listener: &TcpListener, limits: &Limits) {
    let socket = SockRef::from(listener);
    let _ = socket.set_send_buffer_size(limits.unread_bytes);
    if let Some(bytes) = limits.unseen_bytes {
        let _ = socket.set_recv_buffer_size(bytes);
    }
    // At least two segments fit the send buffer: a receiver delays the acknowledgement of a single one by 40 ms.
    let segment = LONGEST_SEGMENT.min(limits.unread_bytes);
    let _ = socket.set_tcp_mss(u32::try_from(segment).unwrap_or(u32::MAX));
}

/// Sets the options that a connection does not inherit from its listener.
pub(super) fn configure(stream: &TcpStream, limits: &Limits) {
    // Answers are written whole: waiting to fill a segment would only add latency.
    let _ = stream.set_nodelay(true);
    // Data that a dead or stalled client has not acknowledged is dropped after this time.
    let _ = SockRef::from(stream).set_tcp_user_timeout(Some(limits.unread));
}

/// Makes a close reset the connection: after an ordinary close the kernel would keep the unread data.
pub(super) fn reset_on_close(stream: &TcpStream) {
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}
