//! The life with the kubelet: serve, dial the own socket, register, watch for reasons to begin
//! anew.
//!
//! A session ends when the kubelet's socket is another one (it restarted, and has deleted all
//! plugin sockets), when our own socket is gone, or when the kubelet has dropped its device list
//! stream; the last happens without a restart (kubernetes/kubernetes#135437). Invariant: one
//! session at a time, and each on a fresh socket, since to register again while an old stream lives
//! would make the kubelet drop the new one with the old.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint, Server};

use crate::admission::Admission;
use crate::cards::Cards;
use crate::metrics::Metrics;
use crate::service::{OPTIONS, Service, Streams};
use kubelet_api::v1beta1::device_plugin_client::DevicePluginClient;
use kubelet_api::v1beta1::device_plugin_server::DevicePluginServer;
use kubelet_api::v1beta1::registration_client::RegistrationClient;
use kubelet_api::v1beta1::{Empty, RegisterRequest};

/// The kubelet's registration socket in the device plugin directory.
pub const KUBELET_SOCKET: &str = "kubelet.sock";
/// Ours.
pub const PLUGIN_SOCKET: &str = "plimsoll-gpu-mem.sock";
/// The version of the interface that is spoken.
const VERSION: &str = "v1beta1";

/// How often the sockets are looked at. A restarted kubelet admits pods about a second after it
/// made its socket, on a busy machine sooner than we are scheduled; those that come before we have
/// registered fail for good.
const LOOK: Duration = Duration::from_millis(50);
/// The longest pause between two attempts on the same socket; one that a dead kubelet left behind
/// stays until the next kubelet replaces it, which is seen at the next look.
const LONGEST_PAUSE: Duration = Duration::from_millis(800);
/// Registration dials back to us, for up to 10 s.
const REGISTER: Duration = Duration::from_secs(15);
/// For the kubelet to open its stream after a registration.
const STREAM: Duration = Duration::from_secs(10);
/// For calls in flight when a session ends.
const FAREWELL: Duration = Duration::from_secs(1);
/// Preferences list every free id: the default of 4 MiB is not enough for very large nodes.
const MAX_MESSAGE: usize = 16 << 20;

/// What a session needs.
#[derive(Clone)]
pub struct Plugin {
    /// The kubelet's device plugin directory.
    pub directory: PathBuf,
    /// The resource to register.
    pub resource: String,
    /// Answers the kubelet.
    pub admission: Arc<Admission>,
    /// What is listed.
    pub cards: watch::Receiver<Arc<Cards>>,
    /// Where registrations are counted.
    pub metrics: Metrics,
}

/// Why a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The process stops.
    Shutdown,
    /// The kubelet's socket is another one, or gone.
    KubeletRestarted,
    /// Our socket is gone.
    SocketGone,
    /// The kubelet dropped the device list stream.
    StreamDropped,
    /// The kubelet never opened one.
    NoStream,
}

/// Why a session did not come about.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// There is no kubelet.
    #[error(
        "no kubelet at {0}: waiting for it (is --device-plugin-dir the kubelet's, and mounted?)"
    )]
    NoKubelet(PathBuf),
    /// Our socket cannot be made.
    #[error("cannot listen at {path}: {source} (is --device-plugin-dir mounted writable?)")]
    Listen {
        /// The socket.
        path: PathBuf,
        /// What is wrong.
        source: io::Error,
    },
    /// A gRPC connection failed.
    #[error("cannot connect to {path}: {source}")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What is wrong.
        source: tonic::transport::Error,
    },
    /// A call failed.
    #[error("{what}: {status}")]
    Call {
        /// Which.
        what: &'static str,
        /// The answer.
        status: Box<tonic::Status>,
    },
    /// A call took too long.
    #[error("{0}: no answer")]
    Late(&'static str),
}

/// One file for as long as it is that file. The inode number alone may be used again at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileMark(u64, i64, i64);

impl FileMark {
    fn of(path: &Path) -> Option<Self> {
        let data = fs::metadata(path).ok()?;
        Some(Self(data.ino(), data.ctime(), data.ctime_nsec()))
    }
}

impl Plugin {
    /// Keeps a session going until the shutdown. `registered` is told whether one stands, and if
    /// not, why.
    pub async fn run(&self, shutdown: daemon::Shutdown, registered: impl Fn(Result<(), String>)) {
        let kubelet = self.directory.join(KUBELET_SOCKET);
        let mut pause = LOOK;
        while !shutdown.is_cancelled() {
            let tried = FileMark::of(&kubelet);
            match self.session(&shutdown, || registered(Ok(()))).await {
                Ok(ended) => {
                    registered(Err(format!("the session with the kubelet ended: {ended:?}")));
                    pause = LOOK;
                    // The new kubelet admits pods soon.
                    if ended == Ended::KubeletRestarted {
                        continue;
                    }
                }
                Err(error) => {
                    registered(Err(error.to_string()));
                    pause =
                        if matches!(error, SessionError::NoKubelet(_)) { LOOK } else { pause * 2 };
                }
            }
            pause = pause.min(LONGEST_PAUSE);
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = sleep(pause) => {}
                () = another_socket(&kubelet, tried) => pause = LOOK,
            }
        }
    }

    async fn session(
        &self,
        shutdown: &daemon::Shutdown,
        registered: impl FnOnce(),
    ) -> Result<Ended, SessionError> {
        let kubelet = self.directory.join(KUBELET_SOCKET);
        let mark =
            FileMark::of(&kubelet).ok_or_else(|| SessionError::NoKubelet(kubelet.clone()))?;
        let end = shutdown.child_token();
        // Ends the server however this function is left.
        let _guard = end.clone().drop_guard();
        let (streams, streamed) = watch::channel(Streams::default());
        let (own, server) = self.serve(streams, end.clone())?;
        dial(&own).await?;
        self.register(&kubelet).await?;
        self.metrics.registrations.inc();
        registered();
        let ended = tokio::select! {
            () = shutdown.cancelled() => Ended::Shutdown,
            ended = another_file(&kubelet, mark, &own) => ended,
            ended = stream_end(streamed) => ended,
        };
        end.cancel();
        let abort = server.abort_handle();
        // A kubelet that is gone waits for no answer.
        let farewell = if ended == Ended::KubeletRestarted { Duration::ZERO } else { FAREWELL };
        if timeout(farewell, server).await.is_err() {
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
        // One that a killed process left behind, or of the session before.
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path)
            .map_err(|source| SessionError::Listen { path: path.clone(), source })?;
        let service = Service {
            admission: self.admission.clone(),
            cards: self.cards.clone(),
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

/// The kubelet dials back during Register: what does not answer us would not answer it.
async fn dial(own: &Path) -> Result<(), SessionError> {
    let mut client = DevicePluginClient::new(connect(own).await?);
    call("dial our own socket", client.get_device_plugin_options(Empty {})).await
}

async fn connect(path: &Path) -> Result<Channel, SessionError> {
    let failed = |source| SessionError::Connect { path: path.to_owned(), source };
    let endpoint = Endpoint::from_shared(format!("unix://{}", path.display())).map_err(failed)?;
    endpoint.connect_timeout(REGISTER).connect().await.map_err(failed)
}

async fn call<T>(
    what: &'static str,
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<(), SessionError> {
    let answer = timeout(REGISTER, call).await.map_err(|_| SessionError::Late(what))?;
    answer.map(drop).map_err(|status| SessionError::Call { what, status: Box::new(status) })
}

/// Waits until the kubelet's socket is there and is another one than `tried`.
async fn another_socket(kubelet: &Path, tried: Option<FileMark>) {
    while FileMark::of(kubelet).is_none_or(|mark| Some(mark) == tried) {
        sleep(LOOK).await;
    }
}

async fn another_file(kubelet: &Path, mark: FileMark, own: &Path) -> Ended {
    loop {
        sleep(LOOK).await;
        if FileMark::of(kubelet) != Some(mark) {
            return Ended::KubeletRestarted;
        }
        if !own.exists() {
            return Ended::SocketGone;
        }
    }
}

async fn stream_end(mut streams: watch::Receiver<Streams>) -> Ended {
    let opened = streams.wait_for(|streams| streams.opened > 0);
    if timeout(STREAM, opened).await.is_err() {
        return Ended::NoStream;
    }
    match streams.wait_for(|streams| streams.live == 0).await {
        Ok(_) | Err(_) => Ended::StreamDropped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nobody who waits for the next kubelet waits for longer than it takes to look.
    #[tokio::test]
    async fn a_new_socket_is_seen_and_neither_the_old_one_nor_none() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join(KUBELET_SOCKET);
        fs::write(&socket, "").unwrap();
        let old = FileMark::of(&socket);
        let mut seen = std::pin::pin!(another_socket(&socket, old));
        assert!(timeout(3 * LOOK, &mut seen).await.is_err());
        fs::remove_file(&socket).unwrap();
        assert!(timeout(3 * LOOK, &mut seen).await.is_err());
        fs::write(&socket, "").unwrap();
        timeout(Duration::from_secs(60), seen).await.unwrap();
    }
}
