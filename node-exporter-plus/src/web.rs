//! The way in: plain HTTP or TLS, with or without a bearer token.

use std::net::SocketAddr;

use daemon::Context;
use daemon::follow::{Current, EVERY, FileError, Follower, NamedFile, Source};
use daemon::http::{Limits, Transport, bind, serve_over};
use daemon::tls::{Acceptor, Identity};
use daemon::token::TokenFile;

use crate::Metrics;
use crate::http::Scrape;

/// What the flags say about it.
#[derive(Debug)]
pub(crate) struct Web {
    pub(crate) address: SocketAddr,
    /// Certificate and key.
    pub(crate) identity: Option<(NamedFile, NamedFile)>,
    pub(crate) token: Option<NamedFile>,
}

impl Web {
    /// Serves `scrape` as part of the process.
    pub(crate) async fn serve(
        self,
        scrape: Scrape,
        metrics: &Metrics,
        context: &Context,
    ) -> anyhow::Result<()> {
        let (tls, token) = (self.identity.is_some(), self.token.is_some());
        let secure = |identity| secure(identity, metrics, context);
        let transport = self.identity.map(secure).transpose()?.unwrap_or(Transport::Plain);
        let watched = |file| followed("token", TokenFile(file), metrics, context);
        let scrape = scrape.guarded(self.token.map(watched).transpose()?);
        let listener = bind(self.address, "--web.listen-address").await?;
        let address = listener.local_addr()?;
        tracing::info!(%address, tls, token, "serving /metrics and /statistics");
        if token && !tls {
            tracing::warn!(
                "--web.token-file without TLS: whoever can read the network reads the token"
            );
        }
        let server = serve_over(transport, listener, scrape, Limits::admin(), context.shutdown());
        context.spawn("serve", server);
        Ok(())
    }
}

fn secure(
    (certificate, key): (NamedFile, NamedFile),
    metrics: &Metrics,
    context: &Context,
) -> anyhow::Result<Transport> {
    let identity = Identity { certificate, key };
    let current = followed("certificate", identity, metrics, context)?;
    Ok(Transport::Tls(Acceptor::new(current, metrics.handshake_failures())))
}

/// What the files hold, now and later.
fn followed<S>(
    name: &'static str,
    source: S,
    metrics: &Metrics,
    context: &Context,
) -> anyhow::Result<Current<S::Value>>
where
    S: Source + Send + 'static,
    S::Value: Send + Sync + 'static,
{
    let (follower, current) = Follower::open(source)?;
    let metrics = metrics.clone();
    let count = move |change: Result<_, &FileError>| metrics.credential_read(name, change.is_ok());
    let pause = || tokio::time::sleep(EVERY);
    context.spawn(name, follower.follow(pause, count, context.shutdown()));
    Ok(current)
}
