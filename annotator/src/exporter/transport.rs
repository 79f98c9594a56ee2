//! How connections to exporters are made, with or without TLS. No proxy is used.
//!
//! Invariant: a TLS connection is returned only after the exporter's certificate was verified.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cluster::ServerPlace;
use http::header::HeaderValue;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;

use super::endpoint::Endpoint;
use super::error::PollError;
use super::http::{Connection, Recipient};
use super::tls::{SERVER_NAME, TlsSettings, tls_cause};

/// The transport to all exporters.
#[derive(Debug)]
pub(crate) enum Transport {
    /// Plain HTTP.
    Plain,
    /// HTTPS.
    Secure(Box<TlsSettings>),
}

impl Transport {
    /// Whether it accepts the same servers as `other`, so that connections of `other` can be reused. The token may
    /// differ: it is sent with each request.
    pub(super) fn trusts_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Plain, Self::Plain) => true,
            (Self::Secure(ours), Self::Secure(theirs)) => ours.ca == theirs.ca,
            _ => false,
        }
    }

    /// The headers of requests to the exporter at `endpoint`. With TLS, the Host header is the name in its certificate.
    pub(super) fn recipient(&self, endpoint: &Endpoint) -> Result<Recipient, PollError> {
        let mut address = endpoint.address().to_owned();
        let mut authorization = None;
        if let Self::Secure(settings) = self {
            let port = address.rsplit(':').next().unwrap_or_default();
            address = format!("{SERVER_NAME}:{port}");
            authorization.clone_from(&settings.authorization);
        }
        match HeaderValue::try_from(address) {
            Ok(host) => Ok(Recipient { host, authorization }),
            Err(error) => Err(PollError::Connect(error.to_string())),
        }
    }

    /// A new connection to the exporter at `endpoint`. A host name is resolved, and its addresses are tried in turn.
    ///
    /// # Errors
    /// If no address within `reach` accepts the connection, or the certificate is not accepted.
    pub(super) async fn connect(
        &self,
        endpoint: &Endpoint,
        reach: Reach,
    ) -> Result<Connection, PollError> {
        let stream = open(endpoint, reach).await.map_err(|error| connect_error(&error))?;
        // Requests are written at once anyway; this only avoids a delay of the last part of a handshake.
        stream.set_nodelay(true).map_err(|error| connect_error(&error))?;
        match self {
            Self::Plain => Ok(Connection::new(stream)),
            Self::Secure(settings) => {
                let name = ServerName::try_from(SERVER_NAME)
                    .map_err(|error| PollError::Connect(error.to_string()))?;
                let opened = settings.connector.connect(name, stream).await;
                Ok(Connection::new(opened.map_err(|error| connect_error(&error))?))
            }
        }
    }
}

/// Which addresses exporters may have. An InternalIP or an annotation, which a node's agent can write, cannot have this
/// program ask its own node or a cloud's metadata service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Those of other machines.
    Others,
    /// Those and loopback ones: the whole cluster is on this machine, and so are its exporters.
    LoopbackToo,
}

impl Reach {
    /// In a cluster whose API server is there.
    pub(crate) fn in_cluster(server: ServerPlace) -> Self {
        match server {
            ServerPlace::Loopback => Self::LoopbackToo,
            ServerPlace::Elsewhere => Self::Others,
        }
    }

    fn has(self, ip: IpAddr) -> bool {
        !is_no_other_machine(ip) || self == Self::LoopbackToo && ip.to_canonical().is_loopback()
    }
}

async fn open(endpoint: &Endpoint, reach: Reach) -> io::Result<TcpStream> {
    let mut failure = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in tokio::net::lookup_host(endpoint.address()).await? {
        if !reach.has(address.ip()) {
            failure = io::Error::new(
                ErrorKind::PermissionDenied,
                format!(
                    "{} is no address of another machine: loopback, link-local, multicast, unspecified or of a cloud's \
                     metadata service; correct the Node's InternalIP or annotation",
                    address.ip()
                ),
            );
            continue;
        }
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Addresses of clouds' metadata services that are not link-local: Alibaba Cloud's, Azure's, and that of AWS by IPv6.
const METADATA_SERVICES: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
];

/// Whether an address is of this machine alone, as those of a cloud's metadata service are too, or of no machine.
fn is_no_other_machine(ip: IpAddr) -> bool {
    if METADATA_SERVICES.contains(&ip.to_canonical()) {
        return true;
    }
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            ip.is_loopback()
                || ip.is_link_local()
                || ip.is_multicast()
                || ip.is_broadcast()
                || ip.octets()[0] == 0
        }
        IpAddr::V6(ip) => {
            // NAT64 translates these to the IPv4 address in their last four bytes (RFC 6052).
            let translated = match ip.segments() {
                [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
                    Some(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)))
                }
                _ => None,
            };
            ip.is_loopback()
                || ip.is_unicast_link_local()
                || ip.is_multicast()
                || ip.is_unspecified()
                || translated.is_some_and(|ip| is_no_other_machine(ip.into()))
        }
    }
}

/// An error before the first request.
fn connect_error(error: &io::Error) -> PollError {
    match tls_cause(error) {
        Some(cause) => PollError::Tls(cause),
        None => PollError::Connect(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_machine_alone_are_told_from_those_of_others() {
        for own in [
            "127.0.0.1",
            "127.9.9.9",
            "169.254.169.254",
            "100.100.100.200",
            "168.63.129.16",
            "fd00:ec2::254",
            "::ffff:100.100.100.200",
            "64:ff9b::a83f:8110",
            "0.0.0.0",
            "0.1.2.3",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::169.254.169.254",
            "64:ff9b::7f00:1",
        ] {
            let ip: IpAddr = own.parse().unwrap();
            assert!(!Reach::in_cluster(ServerPlace::Elsewhere).has(ip), "{own}");
            let is_loopback = own.contains("127.") || own == "::1";
            assert_eq!(Reach::in_cluster(ServerPlace::Loopback).has(ip), is_loopback, "{own}");
        }
        for other in [
            "10.0.0.7",
            "192.168.1.1",
            "100.64.0.1",
            "8.8.8.8",
            "fd00::7",
            "2001:db8::1",
            "64:ff9b::10.0.0.7",
        ] {
            let ip = other.parse().unwrap();
            for server in [ServerPlace::Elsewhere, ServerPlace::Loopback] {
                assert!(Reach::in_cluster(server).has(ip), "{other}");
            }
        }
    }
}
