//! Blanks what may be secret in texts and objects.
//!
//! Rather too much than too little: of variables only Plimsoll's own settings keep their values, of annotations only
//! Plimsoll's own and those that it reads, and any text that looks like a token goes, wherever it stands.
//!
//! Invariant: the time goes with the length of a text, whatever is in it. Others' pods write into the logs.

use std::ops::Range;

use placement::names::Names;
use serde_json::{Map, Value};

use super::token::{is_hex, is_token};

/// What stands in place of a secret.
const BLANK: &str = "<blanked>";
/// Fields that are left out: they repeat what is elsewhere, as it was written.
const LEFT_OUT: [&str; 2] = ["managedFields", "kubectl.kubernetes.io/last-applied-configuration"];
/// The beginning of variables whose values are shown, unless they look like a secret.
const SHOWN_VARIABLES: [&str; 2] = ["PLIMSOLL_", "NVIDIA_"];
/// Other programs' annotations whose values are shown: who installs Plimsoll, and Aliyun's about cards.
const SHOWN_ANNOTATIONS: [&str; 4] = [
    "meta.helm.sh/release-name",
    "meta.helm.sh/release-namespace",
    "argocd.argoproj.io/tracking-id",
    "deployment.kubernetes.io/revision",
];
/// The beginning of Aliyun's annotations.
const ALIYUN: &str = "ALIYUN_COM_GPU_MEM_";

/// What the name of a secret contains, with blanks between: small letters and digits alone, as [`letters_of`] gives
/// them.
const NAME_PARTS: &str = "token password passwd passphrase secret credential apikey authkey \
                          privatekey accesskey accountkey sharedkey masterkey signingkey \
                          encryptionkey sshkey sessionid sessid";
/// What the name of a secret ends with, with blanks between.
const NAME_ENDS: &str = "pass pwd auth authorization cookie bearer signature keydata clientkey";
/// Whole names of secrets.
const NAMES: [&str; 2] = ["sig", "session"];
/// Headers whose whole value is secret, whatever is in it.
const HEADERS: [&str; 2] = ["authorization", "cookie"];
/// What the name of a place where a secret is ends with: `secretName`, `--token-file`.
const PLACES: [&str; 5] = ["name", "file", "dir", "path", "ref"];
/// Flags of one letter, and those without a secret's name, behind which a user and a password stand.
const USER_FLAGS: [&str; 3] = ["-u", "--user", "--proxy-user"];
/// Words behind which credentials stand, in small letters.
const SCHEMES: [&str; 2] = ["bearer", "basic"];
/// The longest name of a user that is looked for before a colon, in characters.
const MAX_USER: usize = 256;
/// Values that are no secret, in small letters.
const LITERALS: [&str; 4] = ["true", "false", "null", "none"];

/// Blanks an object and everything in it.
pub(super) fn value(value: &mut Value) {
    match value {
        Value::Object(fields) => object(fields),
        Value::Array(items) => array(items),
        Value::String(text) => *text = self::text(text),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn object(fields: &mut Map<String, Value>) {
    if fields.get("kind").and_then(Value::as_str) == Some("Secret") {
        fields.clear();
        return;
    }
    if let Some(env) = fields.get_mut("env").and_then(Value::as_array_mut) {
        env.iter_mut().for_each(variable);
    }
    if let Some(annotations) = fields.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.retain(|key, _| !LEFT_OUT.contains(&key.as_str()));
        annotations.iter_mut().for_each(|(key, value)| annotation(key, value));
    }
    // As the headers of a probe: `{"name": "Authorization", "value": …}`.
    if fields.get("name").and_then(Value::as_str).is_some_and(is_secret_name) {
        fields.get_mut("value").into_iter().for_each(blank);
    }
    for (key, mut field) in std::mem::take(fields) {
        if LEFT_OUT.contains(&key.as_str()) {
            continue;
        }
        if is_secret_name(&key) {
            blank(&mut field);
        }
        value(&mut field);
        fields.insert(text(&key), field);
    }
}

fn array(items: &mut [Value]) {
    // A flag and its value may be two words.
    let mut flag = String::new();
    for item in items {
        if item.as_str().is_some_and(|word| is_value_of_flag(&flag, word)) {
            *item = Value::from(BLANK);
        }
        flag = item.as_str().unwrap_or_default().to_owned();
        value(item);
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

fn variable(variable: &mut Value) {
    let name = variable["name"].as_str().unwrap_or_default().to_owned();
    let shown = SHOWN_VARIABLES.iter().any(|start| name.starts_with(start));
    if variable.get("value").is_some() && (!shown || is_secret_name(&name)) {
        variable["value"] = Value::from(BLANK);
    }
}

fn annotation(key: &str, value: &mut Value) {
    let shown = Names::default().owns(key)
        || SHOWN_ANNOTATIONS.contains(&key)
        || key.starts_with(ALIYUN)
        || value.as_str().is_some_and(|value| is_reading(key, value));
    if !shown {
        *value = Value::from(BLANK);
    }
}

/// Whether it is an annotation of crane's form: a key without a domain, and a number with a time behind it.
fn is_reading(key: &str, value: &str) -> bool {
    let of_reading = |c: char| c.is_ascii_digit() || ".,:-+eTZ".contains(c);
    !key.contains('/') && value.contains(',') && value.chars().all(of_reading)
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
    if !flag.starts_with('-') || flag.contains('=') || word.starts_with('-') {
        return false;
    }
    match flag {
        "-p" => !word.starts_with('/') && !word.bytes().all(|byte| byte.is_ascii_digit()),
        flag if USER_FLAGS.contains(&flag) => word.contains(':'),
        flag => is_secret_name(flag),
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

/// Blanks the values of `token=…`, `"password": …`, `--password …`, `Bearer …`, and of users in addresses.
fn assignments(line: &str) -> String {
    let mut blanked = String::new();
    let mut at = 0;
    while at < line.len() {
        let rest = &line[at..];
        let name = &rest[..rest.find(|c| !is_of_name(c)).unwrap_or(rest.len())];
        if name.is_empty() {
            let (kept, secret) = match rest.strip_prefix("://") {
                Some(authority) => (3, user_of(authority)),
                None => (rest.chars().next().map_or(1, char::len_utf8), 0),
            };
            blanked += &rest[..kept];
            blanked += if secret > 0 { BLANK } else { "" };
            at += kept + secret;
            continue;
        }
        blanked += name;
        at += name.len();
        let begins_line = line[..at - name.len()].trim_matches([' ', '\t', '-']).is_empty();
        if let Some(secret) = secret_behind(name, &line[at..], begins_line) {
            blanked += &line[at..at + secret.start];
            blanked += BLANK;
            at += secret.end;
        }
    }
    blanked
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

/// Where the secret is in the text behind a name; `None` if the name tells of none.
fn secret_behind(name: &str, text: &str, begins_line: bool) -> Option<Range<usize>> {
    let blanks = [' ', '\t'];
    let behind_quote = text.trim_start_matches(['"', '\'', '\\']).trim_start_matches(blanks);
    if let Some(rest) = behind_quote.strip_prefix(['=', ':']) {
        let value = rest.trim_start_matches(['=', ':', '>', ' ', '\t', '[', '{', '(']);
        if USER_FLAGS.contains(&name) {
            return if may_be_user(value) { value_in(text, value) } else { None };
        }
        if !is_secret_name(name) {
            return None;
        }
        let letters = letters_of(name);
        let is_header = HEADERS.iter().any(|header| letters.ends_with(header));
        let is_yaml = begins_line && behind_quote.starts_with(": ");
        if (is_header || is_yaml) && !text.starts_with(['"', '\'', '\\']) {
            // The value is the rest of the line.
            return (!is_harmless(value)).then(|| text.len() - value.len()..text.len());
        }
        return value_in(text, value);
    }
    let value = text.trim_start_matches(blanks);
    let is_scheme = SCHEMES.contains(&name.to_ascii_lowercase().as_str());
    let is_apart = value.len() < text.len();
    if is_apart && (is_scheme || is_value_of_flag(name, first_word(value))) {
        return value_in(text, value);
    }
    None
}

/// The first word of a text, without a quote before it.
fn first_word(text: &str) -> &str {
    let word = text.trim_start_matches(['"', '\'', '\\']);
    &word[..word.find(char::is_whitespace).unwrap_or(word.len())]
}

/// Whether the first word of a text has a colon, as a user and a password have between them. One that is longer than
/// any user counts as one, so that no word is looked through again and again.
fn may_be_user(text: &str) -> bool {
    let end = |c: char| c == ':' || c.is_whitespace();
    match text.chars().take(MAX_USER).find(|c| end(*c)) {
        Some(c) => c == ':',
        None => text.chars().nth(MAX_USER).is_some(),
    }
}

/// Where the value is in a text that ends with it: up to its closing quote, or without one to the next blank. `None` if
/// it is no secret.
fn value_in(text: &str, value: &str) -> Option<Range<usize>> {
    if value.trim_start_matches(['\\', '"', '\'', '`']).starts_with(BLANK) {
        return None;
    }
    let slashes = value.len() - value.trim_start_matches('\\').len();
    let (inner, end) = if value[slashes..].starts_with(['"', '\'', '`']) {
        let (open, inner) = value.split_at(slashes + 1);
        (inner, closing(inner, open).unwrap_or(inner.len()))
    } else {
        (value, end_of_word(value))
    };
    let start = text.len() - inner.len();
    (!is_harmless(&inner[..end])).then_some(start..start + end)
}

/// Where a quoted text ends; `open` is its quote, with the backslashes before it.
fn closing(text: &str, open: &str) -> Option<usize> {
    let mut at = 0;
    loop {
        let place = at + text[at..].find(open)?;
        let after = &text[place + open.len()..];
        at = place + open.len();
        if open.len() == 1 && after.starts_with(open) {
            // Two quotes are one of the text, in YAML and in shells.
            at += open.len();
        } else if !text[..place].ends_with('\\') && !after.starts_with(char::is_alphanumeric) {
            return Some(place);
        }
    }
}

/// Where a value without quotes ends.
fn end_of_word(value: &str) -> usize {
    let mut at = 0;
    while let Some(c) = value[at..].chars().next() {
        let rest = &value[at..];
        if c.is_whitespace() || ends_text(rest) {
            return at;
        }
        // A run of backslashes ends it at its beginning or not at all.
        let run = rest.len() - rest.trim_start_matches('\\').len();
        at += run.max(c.len_utf8());
    }
    value.len()
}

/// Whether a text begins with a quote, or with an escaped one, that ends what is around a value: with no letter behind.
fn ends_text(text: &str) -> bool {
    let behind = text.trim_start_matches('\\').strip_prefix(['"', '\'', '`']);
    behind.is_some_and(|behind| !behind.starts_with(char::is_alphanumeric))
}

fn is_harmless(value: &str) -> bool {
    let word = value.trim_end_matches(|c: char| ",;{}[]()".contains(c)).trim();
    word.is_empty()
        || word.starts_with(BLANK)
        || LITERALS.contains(&word.to_ascii_lowercase().as_str())
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
