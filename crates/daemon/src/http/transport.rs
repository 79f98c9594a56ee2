//! The transport below HTTP: plain TCP or TLS.

use std::io;
use std::os::fd::AsFd as _;
use std::time::Duration;

use tokio::net::TcpStream;

/// The transport below HTTP.
#[derive(Debug, Clone)]
pub enum Transport {
    /// TCP alone.
    Plain,
    /// TLS over TCP.
    #[cfg(feature = "tls")]
    Tls(crate::tls::Acceptor),
}

/// One type for both, so that HTTP is compiled once. TLS's state is large, hence the box.
#[cfg(feature = "tls")]
pub(super) type Stream =
    tokio_util::either::Either<TcpStream, Box<tokio_rustls::server::TlsStream<TcpStream>>>;
/// The connection itself.
#[cfg(not(feature = "tls"))]
pub(super) type Stream = TcpStream;

/// The TCP connection beneath.
pub(super) fn socket(stream: &Stream) -> &TcpStream {
    #[cfg(feature = "tls")]
    match stream {
        tokio_util::either::Either::Left(plain) => plain,
        tokio_util::either::Either::Right(tls) => tls.get_ref().0,
    }
    #[cfg(not(feature = "tls"))]
    stream
}

/// Has the events of this connection come to the runtime of the caller, and no longer to the one that opened it.
pub(super) fn move_here(stream: &mut Stream) -> io::Result<()> {
    #[cfg(feature = "tls")]
    let socket = match stream {
        tokio_util::either::Either::Left(plain) => plain,
        tokio_util::either::Either::Right(tls) => tls.get_mut().0,
    };
    #[cfg(not(feature = "tls"))]
    let socket = stream;
    // A second descriptor of the same socket: the stream above cannot be taken apart.
    let twin = std::net::TcpStream::from(socket.as_fd().try_clone_to_owned()?);
    *socket = TcpStream::from_std(twin)?;
    Ok(())
}

/// Whether the client has shown a certificate.
pub(super) fn has_certificate(stream: &Stream) -> bool {
    #[cfg(feature = "tls")]
    match stream {
        tokio_util::either::Either::Left(_) => false,
        tokio_util::either::Either::Right(tls) => tls.get_ref().1.peer_certificates().is_some(),
    }
    #[cfg(not(feature = "tls"))]
    {
        let _: &Stream = stream;
        false
    }
}

impl Transport {
    /// Whether a connection begins with a handshake.
    pub(super) const fn has_handshake(&self) -> bool {
        !matches!(self, Self::Plain)
    }

    /// Counts a connection that got no handshake.
    pub(super) fn count_refused(&self) {
        #[cfg(feature = "tls")]
        if let Self::Tls(acceptor) = self {
            acceptor.count_failure();
        }
    }

    /// The stream for HTTP; `None` if the TLS handshake failed or took longer than `limit`.
    #[cfg(feature = "tls")]
    pub(super) async fn open(&self, stream: TcpStream, limit: Duration) -> Option<Stream> {
        use tokio_util::either::Either;
        match self {
            Self::Plain => Some(Either::Left(stream)),
            Self::Tls(acceptor) => {
                let accepted = Box::pin(acceptor.accept(stream, limit)).await?;
                Some(Either::Right(Box::new(accepted)))
            }
        }
    }

    #[cfg(not(feature = "tls"))]
    #[expect(clippy::unused_async, reason = "the version with TLS waits")]
    pub(super) async fn open(&self, stream: TcpStream, _: Duration) -> Option<Stream> {
        Some(stream)
    }
}
