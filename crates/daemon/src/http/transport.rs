//! The transport below HTTP: plain TCP or TLS.

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

impl Transport {
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
