//! One call to the API server: its timeout and its errors.

use std::future::Future;
use std::time::Duration;

/// Why a call failed, and whether it may have been carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The object does not exist.
    #[error("not found: {0}")]
    NotFound(String),
    /// The object's state forbids it: changed meanwhile, or another object of that name.
    #[error("conflict: {0}")]
    Conflict(String),
    /// Refused with another status 4xx: nothing was written.
    #[error("refused by the API server ({code}): {message}")]
    Refused {
        /// HTTP status code.
        code: u16,
        /// The API server's message.
        message: String,
    },
    /// No answer in time, a broken connection or a status 5xx: the call may have been carried out.
    #[error("no clear answer from the API server: {0}")]
    Unknown(String),
}

/// Awaits `call` for at most `limit`.
pub(crate) async fn within<T>(
    limit: Duration,
    call: impl Future<Output = kube::Result<T>>,
) -> Result<T, CallError> {
    match tokio::time::timeout(limit, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(CallError::from(&error)),
        Err(_) => Err(CallError::Unknown(format!("none within {limit:?}"))),
    }
}

impl From<&kube::Error> for CallError {
    fn from(error: &kube::Error) -> Self {
        let kube::Error::Api(status) = error else {
            return Self::Unknown(innermost(error));
        };
        let message = status.message.clone();
        match status.code {
            404 => Self::NotFound(message),
            409 => Self::Conflict(message),
            // 429 is flow control, before anything was done; 5xx may come after the write.
            code @ 400..=499 => Self::Refused { code, message },
            _ => Self::Unknown(message),
        }
    }
}

/// kube's outer errors only say that a service failed; the cause is at the end of the chain.
pub(crate) fn innermost(error: &dyn std::error::Error) -> String {
    let mut at = error;
    while let Some(source) = at.source() {
        at = source;
    }
    at.to_string()
}
