//! The bearer token that a server requires from its clients.
//!
//! Invariant: the time that a comparison takes depends on the token's length alone, and no log or error shows the
//! token.

use std::fmt;

use axum::http::header::{AUTHORIZATION, HeaderValue, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;

use crate::follow::{FileError, NamedFile, Source};

/// A bearer token. Its `Debug` does not show it.
pub struct Token(Box<[u8]>);

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Token(…)")
    }
}

impl Token {
    /// Whether these headers contain it: `Authorization: Bearer TOKEN`.
    #[must_use]
    pub fn is_in(&self, headers: &HeaderMap) -> bool {
        let shown = headers.get(AUTHORIZATION).and_then(bearer);
        shown.is_some_and(|shown| shown.ct_eq(&self.0).into())
    }
}

/// The token of an `Authorization` header. The scheme's name has no case (RFC 9110, 11.1).
fn bearer(header: &HeaderValue) -> Option<&[u8]> {
    let (scheme, token) = header.as_bytes().split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

/// A file that holds one token.
#[derive(Debug, Clone)]
pub struct TokenFile(pub NamedFile);

impl Source for TokenFile {
    type Value = Token;
    const WHAT: &'static str = "token";

    fn files(&self) -> Vec<&NamedFile> {
        vec![&self.0]
    }

    fn parse(&self, contents: &[Vec<u8>]) -> Result<Token, FileError> {
        let text = contents.first().map(Vec::as_slice);
        token(&self.0, text.unwrap_or_default()).map(|token| Token(token.into()))
    }
}

/// The token in the text of a file, for servers and clients. White space around it is left out.
///
/// # Errors
/// When there is none, or no header could carry it. The error does not show it.
pub fn token<'t>(file: &NamedFile, text: &'t [u8]) -> Result<&'t [u8], FileError> {
    let token = text.trim_ascii();
    if token.is_empty() {
        return Err(file.error("it is empty; expected a token"));
    }
    if !token.iter().all(u8::is_ascii_graphic) {
        let expected = "expected one line of visible ASCII characters without spaces";
        return Err(file.error(expected));
    }
    Ok(token)
}

/// The answer to a request without the token.
#[must_use]
pub fn refusal() -> Response {
    let challenge = [(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))];
    (StatusCode::UNAUTHORIZED, challenge, "a bearer token is required\n").into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(text: &str) -> Result<Token, FileError> {
        let file = NamedFile { flag: "--web.token-file", path: "/etc/token".into() };
        TokenFile(file).parse(&[text.as_bytes().to_vec()])
    }

    fn admits(token: &Token, header: &str) -> bool {
        let header = HeaderValue::from_str(header).unwrap();
        token.is_in(&HeaderMap::from_iter([(AUTHORIZATION, header)]))
    }

    #[test]
    fn only_the_whole_token_is_accepted() {
        let token = made("s3cret\n").unwrap();
        for header in ["Bearer s3cret", "bearer s3cret", "BEARER  s3cret "] {
            assert!(admits(&token, header), "{header}");
        }
        let others = ["", "Bearer", "Bearer ", "Bearer s3cre", "Bearer s3cret1", "Bearer S3cret"];
        for header in others.into_iter().chain(["Basic s3cret", "s3cret", "Bearers3cret"]) {
            assert!(!admits(&token, header), "{header}");
        }
        assert!(!token.is_in(&HeaderMap::new()));
    }

    #[test]
    fn an_empty_file_is_refused_since_it_would_admit_every_client() {
        for text in ["", " \n"] {
            let error = made(text).unwrap_err().to_string();
            assert_eq!(error, "--web.token-file /etc/token: it is empty; expected a token");
        }
    }

    #[test]
    fn a_token_that_no_header_carries_is_refused_and_not_repeated() {
        for text in ["two words", "two\nlines", "schlüssel", "a\0b"] {
            let error = made(text).unwrap_err().to_string();
            assert!(error.ends_with("visible ASCII characters without spaces"), "{error}");
            assert!(!error.contains(text), "{error}");
        }
    }

    #[test]
    fn no_log_shows_a_token() {
        assert_eq!(format!("{:?}", made("s3cret").unwrap()), "Token(…)");
    }
}
