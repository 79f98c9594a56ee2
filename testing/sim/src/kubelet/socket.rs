//! A gRPC server on a Unix socket, which ends as a killed process does.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::Router;

/// Longest wait for calls that are under way when a server ends.
const GRACE: Duration = Duration::from_millis(200);

/// A running server. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Served {
    task: JoinHandle<()>,
    end: oneshot::Sender<()>,
}

/// Serves at `socket`, which must not be there yet.
pub(super) fn serve(socket: &Path, router: Router) -> io::Result<Served> {
    let incoming = UnixListenerStream::new(UnixListener::bind(socket)?);
    let (end, ended) = oneshot::channel();
    let serve = router.serve_with_incoming_shutdown(incoming, until(ended));
    Ok(Served { task: tokio::spawn(async { drop(serve.await) }), end })
}

async fn until(ended: oneshot::Receiver<()>) {
    drop(ended.await);
}

impl Served {
    /// Ends it and all its connections. The socket's file stays behind.
    pub(super) async fn end(self) {
        // An error means that the server has ended already.
        let _ = self.end.send(());
        let abort = self.task.abort_handle();
        if timeout(GRACE, self.task).await.is_err() {
            abort.abort();
        }
    }
}
