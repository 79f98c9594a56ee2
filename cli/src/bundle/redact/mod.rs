//! What of objects and texts goes into a bundle.
//!
//! Of Kubernetes' objects an allow-list ([`mod@kept`]) names the fields that stay; everything else is dropped. Of logs
//! and of answers the end of a line goes behind a name of secrets, and any word that looks like a token.
//!
//! Invariant: the time goes with the length of a text, whatever is in it. Others' pods write into the logs.

mod kept;

use serde_json::Value;

use super::token::{is_hex, is_token};
pub(super) use kept::kept;

/// What stands in place of a secret.
const BLANK: &str = "<blanked>";
/// What the name of a secret contains, with blanks between: small letters and digits alone, as [`letters_of`] gives
/// them.
const NAME_PARTS: &str = "token password passwd passphrase secret credential apikey authkey \
                          privatekey accesskey accountkey sharedkey masterkey signingkey \
                          encryptionkey sshkey sessionid sessid";
/// What the name of a secret ends with, with blanks between.
const NAME_ENDS: &str = "pass pwd auth authorization cookie bearer signature keydata clientkey";
/// Whole names of secrets.
const NAMES: [&str; 2] = ["sig", "session"];
/// What the name of a place where a secret is ends with: `secretName`, `--token-file`.
const PLACES: [&str; 5] = ["name", "file", "dir", "path", "ref"];
/// Flags of one letter, and those without a secret's name, behind which a user and a password stand.
const USER_FLAGS: [&str; 3] = ["-u", "--user", "--proxy-user"];
/// Words behind which credentials stand, in small letters.
const SCHEMES: [&str; 2] = ["bearer", "basic"];
/// How much of a word is looked at, in bytes.
const MAX_WORD: usize = 256;
/// Values that are no secret, in small letters.
const LITERALS: [&str; 4] = ["true", "false", "null", "none"];

/// Blanks what has a secret's name, and looks through every text.
pub(super) fn value(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (key, mut field) in std::mem::take(fields) {
                if is_secret_name(&key) {
                    blank(&mut field);
                }
                self::value(&mut field);
                fields.insert(text(&key), field);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(self::value),
        Value::String(text) => *text = self::text(text),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Blanks texts, numbers, and lists of these.
fn blank(value: &mut Value) {
    match value {
        Value::String(text) if text.is_empty() => {}
        Value::String(_) | Value::Number(_) => *value = Value::from(BLANK),
        Value::Array(items) => items.iter_mut().for_each(blank),
        Value::Object(_) | Value::Null | Value::Bool(_) => {}
    }
}

/// The letters and digits of a name, small: `client_secret`, `client-secret` and `clientSecret` are alike.
fn letters_of(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

fn is_secret_name(name: &str) -> bool {
    let name = letters_of(name);
    if PLACES.iter().any(|end| name.ends_with(end)) {
        return false;
    }
    NAME_PARTS.split(' ').any(|part| name.contains(part))
        || NAME_ENDS.split(' ').any(|end| name.ends_with(end))
        || NAMES.contains(&name.as_str())
}

/// Whether a word is the secret of the flag before it.
fn is_value_of_flag(flag: &str, word: &str) -> bool {
    let is_flag = flag.starts_with('-') && !flag.contains('=') && !word.starts_with('-');
    is_flag && (is_secret_name(flag) || is_user(flag, word))
}

/// Whether a flag has a user and a password behind it, or a password: `-u jane:x`, `-p x`, but not `-p 80`.
fn is_user(flag: &str, word: &str) -> bool {
    match flag {
        "-p" => !word.starts_with('/') && !word.starts_with(|c: char| c.is_ascii_digit()),
        _ => USER_FLAGS.contains(&flag) && !word.starts_with(|c: char| c.is_ascii_digit()),
    }
}

/// Blanks a text, and what is JSON in it.
pub(super) fn text(text: &str) -> String {
    if let Some(blanked) = json(text) {
        return blanked;
    }
    let text = without_keys(text);
    let mut lines: Vec<String> = Vec::new();
    // The indent of a secret's name whose value is the lines below it that have more.
    let mut block: Option<usize> = None;
    for line in text.split('\n') {
        block = block.filter(|indent| line.trim().is_empty() || indent_of(line) > *indent);
        if block.is_some() {
            lines.push(BLANK.to_owned());
            continue;
        }
        block = begins_block(line).then(|| indent_of(line));
        lines.push(json(line).unwrap_or_else(|| words(&assignments(line))));
    }
    lines.join("\n")
}

fn indent_of(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Whether a line of YAML has a secret's name, and its value is in the lines below: `password: |`.
fn begins_block(line: &str) -> bool {
    let field = line.trim_start_matches([' ', '-']).split_once(':');
    let begins = |value: &str| value.trim_start().starts_with(['|', '>']);
    field.is_some_and(|(name, value)| begins(value) && is_secret_name(name))
}

/// A text that is an object or a list of JSON, blanked; as it is where nothing is to be blanked. `None` if it is none.
fn json(text: &str) -> Option<String> {
    if !text.trim_start().starts_with(['{', '[']) {
        return None;
    }
    let before: Value = serde_json::from_str(text).ok()?;
    let mut after = before.clone();
    value(&mut after);
    Some(if after == before { text.to_owned() } else { after.to_string() })
}

/// Without what stands between the first and the last line of a private key or a certificate.
fn without_keys(text: &str) -> String {
    let mut rest = text;
    let mut kept = String::new();
    while let Some((before, after)) = rest.split_once("-----BEGIN ") {
        kept += before;
        kept += BLANK;
        match after.split_once("-----END ") {
            Some((_, after)) => rest = after.split_once("-----").map_or("", |(_, after)| after),
            None => rest = "",
        }
    }
    kept + rest
}

/// A line up to its first secret: behind `token=`, `"password":`, `--password `, `Bearer `. Users in addresses go too.
fn assignments(line: &str) -> String {
    let mut kept = String::new();
    let mut at = 0;
    while at < line.len() {
        let rest = &line[at..];
        let name = &rest[..rest.find(|c| !is_of_name(c)).unwrap_or(rest.len())];
        if name.is_empty() {
            let (sign, user) = match rest.strip_prefix("://") {
                Some(authority) => (3, user_of(authority)),
                None => (rest.chars().next().map_or(1, char::len_utf8), 0),
            };
            kept += &rest[..sign];
            kept += if user > 0 { BLANK } else { "" };
            at += sign + user;
            continue;
        }
        kept += name;
        at += name.len();
        if let Some(sign) = before_secret(name, &line[at..]) {
            return kept + sign + BLANK;
        }
    }
    kept
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

/// The length of the user, with a password or a token, at the beginning of an address without its scheme; 0 if there
/// is none.
fn user_of(authority: &str) -> usize {
    let end = authority.find(|c: char| c.is_whitespace() || "/?#\"'`\\".contains(c));
    authority[..end.unwrap_or(authority.len())].rfind('@').unwrap_or(0)
}

/// What stands between a name and its secret; `None` if the name tells of none.
fn before_secret<'a>(name: &str, text: &'a str) -> Option<&'a str> {
    let behind_quote = text.trim_start_matches(['"', '\'', '\\', ' ', '\t']);
    let value =
        behind_quote.trim_start_matches(['=', ':', '>', '"', '\'', '\\', ' ', '\t', '[', '{', '(']);
    let sign = &text[..text.len() - value.len()];
    let word = first_word(value);
    let tells = if behind_quote.starts_with(['=', ':']) {
        is_secret_name(name) || is_user(name, word) && may_have_colon(word)
    } else {
        let is_scheme = SCHEMES.contains(&name.to_ascii_lowercase().as_str());
        sign.contains([' ', '\t']) && (is_scheme || is_value_of_flag(name, word))
    };
    (tells && !is_harmless(word)).then_some(sign)
}

/// The first word of a text, or its beginning, so that no word is looked through again and again.
fn first_word(text: &str) -> &str {
    let beginning = &text[..text.floor_char_boundary(MAX_WORD)];
    &beginning[..beginning.find(char::is_whitespace).unwrap_or(beginning.len())]
}

/// Whether a word may have a colon, as a user and a password have between them: one that is cut counts as one.
fn may_have_colon(word: &str) -> bool {
    word.contains(':') || word.len() + 4 > MAX_WORD
}

fn is_harmless(value: &str) -> bool {
    let word = value.trim_matches(|c: char| ",;{}[]()\"'".contains(c));
    word.is_empty() || LITERALS.contains(&word.to_ascii_lowercase().as_str())
}

/// Blanks words that look like tokens.
fn words(line: &str) -> String {
    let is_of_word = |c: char| c.is_ascii_alphanumeric() || "+/_-=.".contains(c);
    let mut blanked = String::new();
    let mut word = String::new();
    for c in line.chars().chain(['\n']) {
        if is_of_word(c) {
            word.push(c);
            continue;
        }
        let digest = blanked.ends_with("sha256:") && is_hex(&word);
        blanked += if !digest && is_token(&word) { BLANK } else { &word };
        word.clear();
        blanked.push(c);
    }
    blanked.pop();
    blanked
}

#[cfg(test)]
mod tests;
