//! What of objects and texts goes into a bundle.
//!
//! Of Kubernetes' objects an allow-list ([`mod@kept`]) names the fields that stay; everything else is dropped. Of logs
//! and of answers the end of a line goes behind a name of secrets, and any word that looks like a token.
//!
//! Invariant: the time goes with the length of a text, whatever is in it. Others' pods write into the logs.

mod kept;

use serde_json::{Map, Value};

use super::token::{is_hex, is_token};
use kept::{is_kept_annotation, is_kept_variable};

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
        Value::Object(fields) => object(fields),
        Value::Array(items) => array(items),
        Value::String(text) => *text = self::text(text),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// It may be a part of Kubernetes' objects, as logs and annotations have them.
fn object(fields: &mut Map<String, Value>) {
    if fields.get("kind").is_some_and(|kind| kind == "Secret") {
        return fields.clear();
    }
    for variable in fields.get_mut("env").and_then(Value::as_array_mut).into_iter().flatten() {
        let is_kept = variable["name"].as_str().is_some_and(is_kept_variable);
        if !is_kept && let Some(secret) = variable.get_mut("value") {
            blank(secret);
        }
    }
    if let Some(annotations) = fields.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.retain(|key, value| is_kept_annotation(key, value));
    }
    // As the headers of a probe: `{"name": "Authorization", "value": …}`.
    if fields.get("name").and_then(Value::as_str).is_some_and(is_secret_name) {
        fields.get_mut("value").into_iter().for_each(blank);
    }
    for (key, mut field) in std::mem::take(fields) {
        if is_secret_name(&key) {
            blank(&mut field);
        }
        value(&mut field);
        fields.insert(text(&key), field);
    }
}

fn array(items: &mut [Value]) {
    // A flag and its secret may be two words.
    let mut flag = String::new();
    for item in items {
        let word = item.as_str().unwrap_or_default().to_owned();
        if is_value_of_flag(&flag, &word) {
            blank(item);
        }
        value(item);
        flag = word;
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
    let is_number = word.trim_matches(is_sign).bytes().all(|byte| byte.is_ascii_digit());
    if is_number && !may_be_cut(word) {
        return false;
    }
    USER_FLAGS.contains(&flag) || flag == "-p" && !word.starts_with('/')
}

fn is_sign(c: char) -> bool {
    ",;{}[]()\"'".contains(c)
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
    let word = beginning(sign, value);
    let tells = if behind_quote.starts_with(['=', ':']) {
        is_secret_name(name) || is_user(name, word) && may_have_colon(word)
    } else {
        let is_scheme = SCHEMES.contains(&name.to_ascii_lowercase().as_str());
        sign.contains([' ', '\t']) && (is_scheme || is_value_of_flag(name, word))
    };
    (tells && !is_harmless(name, sign, value)).then_some(sign)
}

/// The quote that a sign ends with.
fn quote_of(sign: &str) -> Option<char> {
    sign.chars().next_back().filter(|c| ['"', '\''].contains(c))
}

/// A value in quotes, or the first word of another; or its beginning, so that no text is looked through again and
/// again.
fn beginning<'a>(sign: &str, value: &'a str) -> &'a str {
    let beginning = &value[..value.floor_char_boundary(MAX_WORD)];
    let end = match quote_of(sign) {
        Some(quote) => beginning.find(quote),
        None => beginning.find(char::is_whitespace),
    };
    &beginning[..end.unwrap_or(beginning.len())]
}

/// Whether a word may have a colon, as a user and a password have between them: one that is cut counts as one.
fn may_have_colon(word: &str) -> bool {
    word.contains(':') || may_be_cut(word)
}

/// Whether more may follow that is not looked at.
fn may_be_cut(word: &str) -> bool {
    word.len() + 4 > MAX_WORD
}

/// Whether the value behind a name and a sign is empty, or one of [`LITERALS`] and nothing else.
fn is_harmless(name: &str, sign: &str, value: &str) -> bool {
    let is_between = |c: char| is_sign(c) || c.is_whitespace();
    if value.chars().all(is_between) {
        return true;
    }
    let end = value.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(value.len());
    let (word, behind) = value.split_at(end);
    if !LITERALS.contains(&word.to_ascii_lowercase().as_str()) {
        return false;
    }
    if let Some(quote) = quote_of(sign) {
        // The value ends with its quote; two quotes are one of it.
        let after = behind.trim_start_matches('\\').strip_prefix(quote);
        after.is_some_and(|after| !after.starts_with(|c: char| c == quote || c.is_alphanumeric()))
    } else if sign.starts_with(['"', '\\']) {
        // A field of JSON: another may follow.
        let field = behind.trim_start_matches([',', '}', ']', ' ']);
        behind.chars().all(is_between)
            || behind.starts_with([',', '}', ']']) && field.starts_with(['"', '\\'])
    } else if name.starts_with('-') || !sign.contains(['=', ':']) {
        // A word of a command: others may follow.
        let next = behind.trim_start_matches(is_sign);
        next.is_empty() || next.starts_with(char::is_whitespace)
    } else {
        behind.chars().all(is_between)
    }
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
