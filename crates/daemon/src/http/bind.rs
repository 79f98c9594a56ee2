//! Listening addresses.
//!
//! Invariant: `[::]` takes IPv4 clients too, and becomes `0.0.0.0` where the kernel has no IPv6.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

/// Connections that the kernel completes ahead of `accept`.
const BACKLOG: i32 = 1024;

/// An address that cannot be listened on; the cause is its source.
#[derive(Debug, thiserror::Error)]
#[error("{flag} {address}: cannot listen there, free the port or give another address")]
pub struct BindError {
    /// The flag that gave the address.
    pub flag: &'static str,
    /// The address.
    pub address: SocketAddr,
    /// The kernel's error.
    pub source: io::Error,
}

/// A reserved address: no other process can take it, and clients are refused until [`Bound::listen`].
#[derive(Debug)]
pub struct Bound {
    socket: Socket,
    flag: &'static str,
    address: SocketAddr,
}

impl Bound {
    /// Lets clients connect.
    ///
    /// # Errors
    /// When another process listens there by now.
    pub fn listen(self) -> Result<TcpListener, BindError> {
        let Self { socket, flag, address } = self;
        let listener = socket.listen(BACKLOG).and_then(|()| TcpListener::from_std(socket.into()));
        listener.map_err(|source| BindError { flag, address, source })
    }
}

/// Reserves `address`, the value of `flag`, so that a taken port is an error before any task starts.
///
/// # Errors
/// When the port is taken, or this machine has no such address.
pub fn reserve(address: SocketAddr, flag: &'static str) -> Result<Bound, BindError> {
    reserve_by(open, address, flag)
}

/// Listens on `address`, the value of `flag`.
///
/// # Errors
/// As [`reserve`].
pub async fn bind(address: SocketAddr, flag: &'static str) -> Result<TcpListener, BindError> {
    reserve(address, flag)?.listen()
}

/// [`reserve`] with the given way to open a socket.
fn reserve_by(
    open: impl Fn(SocketAddr) -> io::Result<Socket>,
    address: SocketAddr,
    flag: &'static str,
) -> Result<Bound, BindError> {
    let socket = open(address).or_else(|error| {
        if address.ip() != Ipv6Addr::UNSPECIFIED || is_about_the_port(&error) {
            return Err(error);
        }
        tracing::info!(%error, "no IPv6 on this machine: {flag} listens on IPv4 alone");
        open((Ipv4Addr::UNSPECIFIED, address.port()).into())
    });
    let bound = socket.map(|socket| Bound { socket, flag, address });
    bound.map_err(|source| BindError { flag, address, source })
}

/// Whether IPv4 would fail with the same error.
fn is_about_the_port(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::PermissionDenied)
}

fn open(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        // Some distributions set net.ipv6.bindv6only.
        socket.set_only_v6(false)?;
    }
    // A restarted process may listen while connections of the former one are in TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpStream;

    const ANY: &str = "[::]:0";

    /// Linux's EAFNOSUPPORT: what socket(2) says where IPv6 is switched off at boot.
    fn without_ipv6(address: SocketAddr) -> io::Result<Socket> {
        if address.is_ipv6() { Err(io::Error::from_raw_os_error(97)) } else { open(address) }
    }

    async fn takes(listener: &TcpListener, client: &str) -> bool {
        let port = listener.local_addr().unwrap().port();
        let (client, accepted) =
            tokio::join!(TcpStream::connect((client, port)), listener.accept());
        client.is_ok() && accepted.is_ok()
    }

    #[tokio::test]
    async fn any_address_takes_clients_over_ipv6_and_ipv4() {
        let listener = bind(ANY.parse().unwrap(), "--listen-address").await.unwrap();
        assert!(takes(&listener, "127.0.0.1").await);
        if std::fs::exists("/proc/net/if_inet6").unwrap() {
            assert!(takes(&listener, "::1").await);
        } else {
            eprintln!("SKIPPED: no IPv6 on this machine, so no client over IPv6");
        }
    }

    #[tokio::test]
    async fn any_address_is_an_ipv4_one_on_a_kernel_without_ipv6() {
        let bound = reserve_by(without_ipv6, ANY.parse().unwrap(), "--listen-address").unwrap();
        let listener = bound.listen().unwrap();
        assert!(listener.local_addr().unwrap().is_ipv4());
        assert!(takes(&listener, "127.0.0.1").await);
    }

    #[tokio::test]
    async fn one_ipv6_address_has_no_fallback() {
        let address = "[::1]:0".parse().unwrap();
        assert!(reserve_by(without_ipv6, address, "--listen-address").is_err());
    }

    #[tokio::test]
    async fn a_taken_port_has_no_fallback_and_is_named_with_its_flag() {
        let listener = bind(ANY.parse().unwrap(), "--listen-address").await.unwrap();
        let address = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port(&listener));
        let error = reserve(address, "--admin-address").unwrap_err();
        assert!(
            error.to_string().starts_with(&format!("--admin-address {address}: cannot listen"))
        );
        assert_eq!(error.source.kind(), ErrorKind::AddrInUse);
    }

    #[tokio::test]
    async fn a_reserved_port_refuses_clients_until_it_listens() {
        let bound = reserve("127.0.0.1:0".parse().unwrap(), "--admin-address").unwrap();
        let address = bound.socket.local_addr().unwrap().as_socket().unwrap();
        let error = TcpStream::connect(address).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        let _listener = bound.listen().unwrap();
        assert!(TcpStream::connect(address).await.is_ok());
    }

    fn port(listener: &TcpListener) -> u16 {
        listener.local_addr().unwrap().port()
    }
}
