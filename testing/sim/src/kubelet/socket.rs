//! A gRPC server on a Unix socket, for as long as the process that it stands for lives.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::Router;

/// A connection with a call under way is not waited for any longer.
const FAREWELL: Duration = Duration::from_millis(200);

/// A server that runs. Dropping it ends it.
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
    /// Ends it, and the connections that others keep open. The socket's file stays behind.
    pub(super) async fn end(self) {
        // Whoever does not listen has ended already.
        let _ = self.end.send(());
        let abort = self.task.abort_handle();
        if timeout(FAREWELL, self.task).await.is_err() {
            abort.abort();
        }
    }
}
