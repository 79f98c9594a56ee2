//! The driver's socket in the kubelet's folder of plugins: made at the start, and again when it is gone.
//!
//! Invariant: while this process lives, the socket is there: the kubelet deletes the node's slices 30 s after it went,
//! and finds it again by itself when it starts.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kubelet_api::dra_health::dra_resource_health_server::DraResourceHealthServer;
use kubelet_api::plugin_registration::registration_server::RegistrationServer;
use tokio::net::UnixListener;
use tokio::time::sleep;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

use super::service::DriverService;

/// Time between two looks at the socket, and before one that cannot be made is tried again.
const LOOK: Duration = Duration::from_secs(1);

/// What follows the driver's name in the socket's. The kubelet's client sends the path, with `%2F` for each slash, as
/// the authority of its requests (`encodeAuthority` of grpc-go). A `%` is allowed there, but our HTTP library takes
/// it in front of an `@` alone, and resets the stream otherwise.
const SOCKET: &str = "@node.sock";

/// Serves the driver.
pub(crate) struct Session {
    /// The kubelet's folder `plugins_registry`.
    pub folder: PathBuf,
    /// What it serves.
    pub service: DriverService,
}

impl Session {
    /// Serves until the shutdown.
    pub(crate) async fn run(self, shutdown: daemon::Shutdown) {
        let path = self.folder.join(format!("{}{SOCKET}", self.service.driver.name));
        while !shutdown.is_cancelled() {
            if let Err(error) = self.serve(&path, &shutdown).await {
                let text = format!("cannot listen at {}: {error}", path.display());
                let remedy =
                    "is the kubelet's folder plugins_registry mounted writable (value claims)?";
                self.service.registered.set(daemon::Status::failed(text, remedy));
            }
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = sleep(LOOK) => {}
            }
        }
    }

    /// Serves on a new socket until it is gone.
    async fn serve(&self, path: &Path, shutdown: &daemon::Shutdown) -> io::Result<()> {
        // A killed process may have left a socket file.
        let _ = fs::remove_file(path);
        let listener = UnixListener::bind(path)?;
        let inode = OwnSocket::inode(path)?;
        let _removed_at_the_end = OwnSocket { path: path.to_owned(), inode };
        self.service.registered.set(daemon::Status::warning(
            "the kubelet has not registered the driver yet",
            "does it run?",
        ));
        let end = shutdown.child_token();
        let _guard = end.clone().drop_guard();
        let service = DriverService { end: end.clone(), ..self.service.clone() };
        let server = Server::builder()
            .add_service(RegistrationServer::new(service.clone()))
            .add_service(kubelet_api::dra_v1::dra_plugin_server::DraPluginServer::new(
                service.clone(),
            ))
            .add_service(kubelet_api::dra_v1beta1::dra_plugin_server::DraPluginServer::new(
                service.clone(),
            ))
            .add_service(DraResourceHealthServer::new(service))
            .serve_with_incoming_shutdown(UnixListenerStream::new(listener), end.cancelled());
        let gone = async {
            while OwnSocket::inode(path).is_ok_and(|now| now == inode) {
                sleep(LOOK).await;
            }
        };
        tokio::select! {
            served = server => served.map_err(io::Error::other),
            () = gone => Ok(()),
            () = shutdown.cancelled() => Ok(()),
        }
    }
}

/// A socket that this process made, and removes at its end. One that a later process has put in its place stays: the
/// kubelet would take that one for gone.
struct OwnSocket {
    path: PathBuf,
    inode: u64,
}

impl OwnSocket {
    fn inode(path: &Path) -> io::Result<u64> {
        Ok(fs::symlink_metadata(path)?.ino())
    }
}

impl Drop for OwnSocket {
    fn drop(&mut self) {
        if Self::inode(&self.path).is_ok_and(|now| now == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::SOCKET;

    #[test]
    fn the_path_of_the_socket_is_an_authority_as_the_kubelet_sends_it() {
        let folder = "%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2F";
        let authority = |socket: &str| {
            tonic::codegen::http::uri::Authority::try_from(format!("{folder}{socket}"))
        };
        assert!(authority(&format!("gpu.plimsoll.dev{SOCKET}")).is_ok());
        assert!(authority("gpu.plimsoll.dev.sock").is_err(), "then the name needs no `@`");
    }
}
