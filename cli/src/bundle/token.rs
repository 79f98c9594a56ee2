//! What a token looks like, wherever it stands: known forms, and long words of mixed letters.

/// How tokens of known makers begin, with blanks between.
const TOKEN_STARTS: &str = "AKIA ASIA AIza ghp_ gho_ ghs_ ghu_ ghr_ github_pat_ glpat- xoxa- xoxb- \
                            xoxp- xapp- npm_ hf_ sk- ya29.";
/// A word that begins like a known token is one from this length.
const KNOWN: usize = 16;
/// A run of hexadecimal digits of this length may be a token.
const HEX: usize = 32;
/// A run of letters, digits and signs of this length, of several kinds, may be a token.
const MIXED: usize = 40;

/// Whether it is of hexadecimal digits alone.
pub(super) fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether a word looks like a token: one of a known form, or long and of mixed letters.
pub(super) fn is_token(word: &str) -> bool {
    word.split(['=', '/', '+']).any(|part| is_known_token(part) || is_bootstrap_token(part))
        || word.split(['.', '=', '/', '-', '_']).any(|part| {
            part.len() >= HEX && is_hex(part) && part.bytes().any(|byte| byte.is_ascii_digit())
        })
        || word.split(['.', '/', '=']).any(|part| part.len() >= MIXED && is_mixed(part))
        || word.split(['.', '=', '-', '_']).any(is_base64)
}

/// Whether it is a JWT, or begins as tokens of a known maker do.
fn is_known_token(word: &str) -> bool {
    word.len() >= KNOWN
        && (word.starts_with("eyJ") || TOKEN_STARTS.split(' ').any(|start| word.starts_with(start)))
}

/// Whether it has the form of kubeadm's tokens: `abcdef.0123456789abcdef`.
fn is_bootstrap_token(word: &str) -> bool {
    let small = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    word.split_once('.').is_some_and(|(id, secret)| {
        id.len() == 6
            && secret.len() == 16
            && id.bytes().chain(secret.bytes()).all(small)
            && word.bytes().any(|byte| byte.is_ascii_digit())
    })
}

fn is_mixed(text: &str) -> bool {
    text.bytes().any(|byte| byte.is_ascii_digit())
        && text.bytes().any(|byte| byte.is_ascii_uppercase())
        && text.bytes().any(|byte| byte.is_ascii_lowercase())
}

/// Whether it looks like base64 with slashes, which a path does too: but of that few letters are capitals.
fn is_base64(text: &str) -> bool {
    let capitals = text.bytes().filter(u8::is_ascii_uppercase).count();
    text.len() >= MIXED && !text.starts_with('/') && is_mixed(text) && capitals >= text.len() / 5
}
