//! The exporter's port: plain HTTP or TLS, with or without a bearer token. Certificate, key and token are read again
//! when their files change.

use std::net::SocketAddr;

use daemon::Context;
use daemon::follow::{Current, EVERY, Follower, NamedFile, Source};
use daemon::http::{Limits, Transport, bind, serve_over};
use daemon::tls::Identity;
use daemon::token::TokenFile;

use super::Endpoints;
use crate::Metrics;

/// The values of the `--web.` flags.
#[derive(Debug)]
pub(crate) struct Server {
    /// The address to listen on.
    pub(crate) address: SocketAddr,
    /// Certificate and key; `None` for plain HTTP.
    pub(crate) identity: Option<Identity>,
    /// The file of the bearer token; `None` admits every client.
    pub(crate) token: Option<NamedFile>,
}

impl Server {
    /// Reads the files, listens, and serves `endpoints` as a task of the process.
    ///
    /// # Errors
    /// When a file cannot be read or holds no certificate, key or token, and when the address is taken.
    pub(crate) async fn start(
        self,
        endpoints: Endpoints,
        metrics: &Metrics,
        context: &Context,
    ) -> anyhow::Result<()> {
        let tls = self.identity.is_some();
        let token = self.token.is_some();
        let transport = match self.identity {
            Some(identity) => {
                let current = followed("certificate", identity, context)?;
                Transport::Tls(metrics.tls.acceptor(current, context))
            }
            None => Transport::Plain,
        };
        let current = self.token.map(|file| followed("token", TokenFile(file), context));
        let guarded = endpoints.with_token(current.transpose()?);
        let listener = bind(self.address, "--web.listen-address").await?;
        let address = listener.local_addr()?;
        tracing::info!(%address, tls, token, "serving /metrics and /statistics");
        if token && !tls {
            tracing::warn!(
                "--web.token-file without TLS: anyone on the network path can read the token"
            );
        }
        let limits = Limits::admin();
        let server = serve_over(transport, listener, guarded, limits, context.shutdown());
        context.spawn("serve", server);
        Ok(())
    }
}

/// The current value of a file, which follows its valid changes.
fn followed<S>(
    name: &'static str,
    source: S,
    context: &Context,
) -> anyhow::Result<Current<S::Value>>
where
    S: Source + Send + 'static,
    S::Value: Send + Sync + 'static,
{
    let (follower, current) = Follower::open(source)?;
    context.follow(name, follower, || tokio::time::sleep(EVERY), |_| ());
    Ok(current)
}
