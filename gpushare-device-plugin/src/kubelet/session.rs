//! Sessions with the kubelet: serve on a socket, check that it answers, register it, wait for the end.
//!
//! A session ends when the kubelet's socket is replaced (it restarted, and deleted all plugin sockets),
//! when the plugin's socket is gone, or when the kubelet dropped the stream of the device list, which also
//! happens without a restart (kubernetes/kubernetes#135437).
//!
//! Invariant: one session at a time, each on a new socket. A second registration while an older stream is
//! open makes the kubelet drop the new stream together with the old one.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use daemon::Causes;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint, Server};

use super::service::{OPTIONS, Service, Streams};
use crate::admission::Admission;
use crate::departure::Phase;
use crate::gpus::Gpus;
use crate::gpus::closed::ByClaims;
use crate::metrics::Metrics;
use kubelet_api::v1beta1::device_plugin_client::DevicePluginClient;
use kubelet_api::v1beta1::device_plugin_server::DevicePluginServer;
use kubelet_api::v1beta1::registration_client::RegistrationClient;
use kubelet_api::v1beta1::{Empty, RegisterRequest};

/// The kubelet's registration socket in the device plugin directory.
pub(crate) const KUBELET_SOCKET: &str = "kubelet.sock";
/// The plugin's socket in the same directory.
pub(crate) const PLUGIN_SOCKET: &str = "plimsoll-gpu-mem.sock";
/// The version of the device plugin interface.
const VERSION: &str = "v1beta1";

/// Time between two checks of the sockets. A restarted kubelet admits pods about a second after it created
/// its socket, and GPU pods that it admits before the plugin has registered fail permanently.
const SOCKET_CHECK: Duration = Duration::from_millis(50);
/// The longest pause between two attempts on the same socket. A dead kubelet's socket stays until the
/// next kubelet replaces it, and a new socket ends the pause.
const MAX_PAUSE: Duration = Duration::from_millis(800);
/// Time for Register. The kubelet dials back during it, for up to 10 s.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(15);
/// Time from the registration until the kubelet must have opened its stream.
const STREAM_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for calls in progress when a session ends.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);
/// The largest request, in bytes. GetPreferredAllocation lists every free id, more than gRPC's default of
/// 4 MiB on very large nodes.
const MAX_MESSAGE: usize = 16 << 20;

/// Registers with the kubelet and serves it.
#[derive(Clone)]
pub(crate) struct Plugin {
    /// The kubelet's device plugin directory.
    pub directory: PathBuf,
    /// The resource to register.
    pub resource: String,
    /// Answers the kubelet's calls.
    pub admission: Arc<Admission>,
    /// The GPUs to list.
    pub gpus: watch::Receiver<Arc<Gpus>>,
    /// Whether the API server can be reached.
    pub reachable: watch::Receiver<bool>,
    /// The GPUs that ResourceClaims have for themselves.
    pub by_claims: watch::Receiver<Option<Arc<ByClaims>>>,
    /// Whether this plugin serves the kubelet.
    pub phase: watch::Sender<Phase>,
    /// Counts registrations.
    pub metrics: Metrics,
}

/// Why a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionEnd {
    /// The process shuts down.
    Shutdown,
    /// The kubelet's socket was replaced or removed.
    KubeletRestarted,
    /// The plugin's socket was removed.
    SocketGone,
    /// The kubelet closed the stream of the device list.
    StreamDropped,
    /// The kubelet did not open a stream.
    NoStream,
}

/// Why a session could not begin.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    /// There is no registration socket of a kubelet at this path.
    #[error("no kubelet at {0}: waiting for it (is its folder mounted there?)")]
    NoKubelet(PathBuf),
    /// The plugin's socket cannot be made.
    #[error("cannot listen at {path}: {cause} (is the kubelet's folder mounted writable?)")]
    Listen {
        /// The plugin's socket.
        path: PathBuf,
        /// The operating system's error.
        cause: io::Error,
    },
    /// A gRPC connection failed.
    #[error("cannot connect to {path}: {cause}")]
    Connect {
        /// The kubelet's socket or the plugin's own.
        path: PathBuf,
        /// The error of tonic and its causes in one line.
        cause: String,
    },
    /// The kubelet, or the plugin's own server, answered a call with an error.
    #[error("{what}: {status}")]
    Call {
        /// What was called.
        what: &'static str,
        /// The gRPC status of the answer.
        status: Box<tonic::Status>,
    },
    /// A call was not answered within 15 s.
    #[error("{0}: no answer")]
    NoAnswer(&'static str),
}

/// Identifies a file: its inode number and the time of its last change. An inode number can be reused at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileId(u64, i64, i64);

impl FileId {
    fn of(path: &Path) -> Option<Self> {
        let data = fs::metadata(path).ok()?;
        Some(Self(data.ino(), data.ctime(), data.ctime_nsec()))
    }
}

impl Plugin {
    /// Holds one session after another until the shutdown. `registered` is called with whether the
    /// plugin is registered, and if not, why.
    pub(crate) async fn run(
        &self,
        shutdown: daemon::Shutdown,
        registered: impl Fn(Result<(), String>),
    ) {
        let kubelet = self.directory.join(KUBELET_SOCKET);
        let mut pause = SOCKET_CHECK;
        while !shutdown.is_cancelled() {
            let tried = FileId::of(&kubelet);
            match self.session(&shutdown, || registered(Ok(()))).await {
                Ok(ended) => {
                    registered(Err(format!("the session with the kubelet ended: {ended:?}")));
                    pause = SOCKET_CHECK;
                    // The new kubelet admits pods within a second.
                    if ended == SessionEnd::KubeletRestarted {
                        continue;
                    }
                }
                Err(error) => {
                    registered(Err(error.to_string()));
                    pause = if matches!(error, SessionError::NoKubelet(_)) {
                        SOCKET_CHECK
                    } else {
                        pause * 2
                    };
                }
            }
            pause = pause.min(MAX_PAUSE);
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = sleep(pause) => {}
                () = new_socket(&kubelet, tried) => pause = SOCKET_CHECK,
            }
        }
    }

    async fn session(
        &self,
        shutdown: &daemon::Shutdown,
        registered: impl FnOnce(),
    ) -> Result<SessionEnd, SessionError> {
        let kubelet = self.directory.join(KUBELET_SOCKET);
        let mark = FileId::of(&kubelet).ok_or_else(|| SessionError::NoKubelet(kubelet.clone()))?;
        let end = shutdown.child_token();
        // Ends the server however this function returns.
        let _guard = end.clone().drop_guard();
        let (streams, streamed) = watch::channel(Streams::default());
        let (own, server) = self.serve(streams, end.clone())?;
        self.admission.kubelet_started();
        check_own_socket(&own).await?;
        self.register(&kubelet).await?;
        self.metrics.registrations.inc();
        registered();
        let ended = tokio::select! {
            () = shutdown.cancelled() => SessionEnd::Shutdown,
            ended = sockets_change(&kubelet, mark, &own) => ended,
            ended = stream_end(streamed, || self.serves()) => ended,
        };
        end.cancel();
        let abort = server.abort_handle();
        // A kubelet that has ended needs no responses.
        let finish =
            if ended == SessionEnd::KubeletRestarted { Duration::ZERO } else { FINISH_TIMEOUT };
        if timeout(finish, server).await.is_err() {
            abort.abort();
        }
        let _ = fs::remove_file(&own);
        Ok(ended)
    }

    fn serve(
        &self,
        streams: watch::Sender<Streams>,
        end: daemon::Shutdown,
    ) -> Result<(PathBuf, JoinHandle<()>), SessionError> {
        let path = self.directory.join(PLUGIN_SOCKET);
        // A killed process or the last session may have left a socket file.
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path)
            .map_err(|cause| SessionError::Listen { path: path.clone(), cause })?;
        let service = Service {
            admission: self.admission.clone(),
            gpus: self.gpus.clone(),
            reachable: self.reachable.clone(),
            by_claims: self.by_claims.clone(),
            streams,
            end: end.clone(),
        };
        let service = DevicePluginServer::new(service).max_decoding_message_size(MAX_MESSAGE);
        let serve = async move {
            let incoming = UnixListenerStream::new(listener);
            let served = Server::builder()
                .add_service(service)
                .serve_with_incoming_shutdown(incoming, end.cancelled());
            if let Err(error) = served.await {
                tracing::error!("the plugin's server failed: {error}");
            }
        };
        Ok((path, tokio::spawn(serve)))
    }

    /// The kubelet has a stream, and its first message is the list of devices.
    fn serves(&self) {
        self.phase.send_if_modified(|phase| {
            let begins = *phase == Phase::Starting;
            if begins {
                *phase = Phase::Serving;
            }
            begins
        });
    }

    async fn register(&self, kubelet: &Path) -> Result<(), SessionError> {
        let mut client = RegistrationClient::new(connect(kubelet).await?);
        let request = RegisterRequest {
            version: VERSION.to_owned(),
            endpoint: PLUGIN_SOCKET.to_owned(),
            resource_name: self.resource.clone(),
            options: Some(OPTIONS),
        };
        call("Register", client.register(request)).await
    }
}

/// Checks that the plugin's socket answers: the kubelet connects to it during Register.
async fn check_own_socket(own: &Path) -> Result<(), SessionError> {
    let mut client = DevicePluginClient::new(connect(own).await?);
    call("connect to the plugin's own socket", client.get_device_plugin_options(Empty {})).await
}

async fn connect(path: &Path) -> Result<Channel, SessionError> {
    match try_connect(path).await {
        Ok(channel) => Ok(channel),
        // tonic's own text is "transport error".
        Err(error) => {
            let cause = Causes(&error).to_string();
            Err(SessionError::Connect { path: path.to_owned(), cause })
        }
    }
}

async fn try_connect(path: &Path) -> Result<Channel, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", path.display()))?;
    endpoint.connect_timeout(REGISTER_TIMEOUT).connect().await
}

async fn call<T>(
    what: &'static str,
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<(), SessionError> {
    let answer = timeout(REGISTER_TIMEOUT, call).await.map_err(|_| SessionError::NoAnswer(what))?;
    answer.map(drop).map_err(|status| SessionError::Call { what, status: Box::new(status) })
}

/// Waits until the kubelet's socket exists and is not the one that was `tried`.
async fn new_socket(kubelet: &Path, tried: Option<FileId>) {
    while FileId::of(kubelet).is_none_or(|mark| Some(mark) == tried) {
        sleep(SOCKET_CHECK).await;
    }
}

async fn sockets_change(kubelet: &Path, before: FileId, own: &Path) -> SessionEnd {
    loop {
        sleep(SOCKET_CHECK).await;
        if FileId::of(kubelet) != Some(before) {
            return SessionEnd::KubeletRestarted;
        }
        if !own.exists() {
            return SessionEnd::SocketGone;
        }
    }
}

/// Waits for the end of the stream, and calls `opened` at its begin.
async fn stream_end(mut streams: watch::Receiver<Streams>, opened: impl FnOnce()) -> SessionEnd {
    let any = streams.wait_for(|streams| streams.opened > 0);
    if timeout(STREAM_TIMEOUT, any).await.is_err() {
        return SessionEnd::NoStream;
    }
    opened();
    match streams.wait_for(|streams| streams.live == 0).await {
        Ok(_) | Err(_) => SessionEnd::StreamDropped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_wait_for_a_kubelet_ends_with_a_new_socket_only() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join(KUBELET_SOCKET);
        fs::write(&socket, "").unwrap();
        let old = FileId::of(&socket);
        let mut seen = std::pin::pin!(new_socket(&socket, old));
        assert!(timeout(3 * SOCKET_CHECK, &mut seen).await.is_err());
        fs::remove_file(&socket).unwrap();
        assert!(timeout(3 * SOCKET_CHECK, &mut seen).await.is_err());
        fs::write(&socket, "").unwrap();
        timeout(Duration::from_secs(60), seen).await.unwrap();
    }
}
