//! Blanks what may be secret in texts and objects.
//!
//! Rather too much than too little: of variables only Plimsoll's own settings keep their values, and any text that
//! looks like a token goes, wherever it stands.

use serde_json::Value;

/// What stands in place of a secret.
const BLANK: &str = "<blanked>";
/// Fields that are left out: they repeat what is elsewhere, as it was written.
const LEFT_OUT: [&str; 2] = ["managedFields", "kubectl.kubernetes.io/last-applied-configuration"];
/// Parts of names whose values are secret.
const SECRET_NAMES: [&str; 8] =
    ["token", "password", "passwd", "secret", "credential", "apikey", "api-key", "api_key"];
/// The beginning of variables whose values are shown, unless they look like a secret.
const SHOWN_VARIABLES: [&str; 2] = ["PLIMSOLL_", "NVIDIA_"];
/// A run of hexadecimal digits of this length may be a token.
const HEX: usize = 32;
/// A run of letters, digits and signs of this length, of several kinds, may be a token.
const MIXED: usize = 40;

/// Blanks an object and everything in it.
pub(super) fn value(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if fields.get("kind").and_then(Value::as_str) == Some("Secret") {
                fields.clear();
                return;
            }
            fields.retain(|key, _| !LEFT_OUT.contains(&key.as_str()));
            if let Some(env) = fields.get_mut("env").and_then(Value::as_array_mut) {
                env.iter_mut().for_each(variable);
            }
            for (key, field) in fields.iter_mut() {
                if is_secret_name(key) && field.is_string() {
                    *field = Value::from(BLANK);
                }
                self::value(field);
            }
        }
        Value::Array(items) => {
            // A flag and its value may be two words.
            let mut secret_follows = false;
            for item in items {
                if let (Value::String(word), true) = (&*item, secret_follows)
                    && !word.starts_with('-')
                {
                    *item = Value::from(BLANK);
                }
                secret_follows = item.as_str().is_some_and(|word| {
                    word.starts_with('-') && !word.contains('=') && is_secret_name(word)
                });
                self::value(item);
            }
        }
        Value::String(text) => *text = self::text(text),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn variable(variable: &mut Value) {
    let name = variable["name"].as_str().unwrap_or_default().to_owned();
    let shown = SHOWN_VARIABLES.iter().any(|start| name.starts_with(start));
    if variable.get("value").is_some() && (!shown || is_secret_name(&name)) {
        variable["value"] = Value::from(BLANK);
    }
}

fn is_secret_name(name: &str) -> bool {
    let name = name.to_lowercase();
    SECRET_NAMES.iter().any(|part| name.contains(part)) && !is_of_place(&name)
}

/// Whether a name in small letters is one of a place where a secret is: `secretName`, `--token-file`.
fn is_of_place(name: &str) -> bool {
    ["name", "file", "dir", "path", "ref"].iter().any(|end| name.ends_with(end))
}

/// Blanks a text.
pub(super) fn text(text: &str) -> String {
    let text = without_keys(text);
    let mut lines: Vec<String> = Vec::new();
    for line in text.split('\n') {
        lines.push(words(&assignments(line)));
    }
    lines.join("\n")
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

/// Blanks the values of `token=…`, `"password": …`, `Bearer …`, and of users in addresses.
fn assignments(line: &str) -> String {
    let mut blanked = String::new();
    let mut rest = line;
    while let Some(place) = next_secret(rest) {
        let (before, after) = rest.split_at(place);
        blanked += before;
        blanked += BLANK;
        let end = after.find(|c: char| c.is_whitespace() || "\"',;&}@\\".contains(c));
        // A value that begins with one of these goes with all that follows.
        let end = end.filter(|end| *end > 0).unwrap_or(after.len());
        rest = &after[end..];
    }
    blanked + rest
}

/// Where the next value begins that a name before it says is secret.
fn next_secret(text: &str) -> Option<usize> {
    let lower = text.to_lowercase();
    // Lower case may be of another length where the text has letters beyond ASCII: then nothing is told by its places.
    if lower.len() != text.len() {
        return None;
    }
    let mut first: Option<usize> = None;
    for name in SECRET_NAMES.iter().copied().chain(["bearer ", "basic ", "://"]) {
        for (place, _) in lower.match_indices(name) {
            if let Some(value) = value_behind(text, place, name) {
                first = Some(first.map_or(value, |first| first.min(value)));
                break;
            }
        }
    }
    first
}

/// Where the value begins whose name is at this place; `None` if there is none that is to be blanked.
fn value_behind(text: &str, place: usize, name: &str) -> Option<usize> {
    let after = place + name.len();
    let rest = &text[after..];
    let start = match name {
        "bearer " | "basic " => after,
        "://" => {
            let authority =
                rest.split(|c: char| c.is_whitespace() || "/?#\"'".contains(c)).next()?;
            if !authority.contains('@') || !authority.contains(':') {
                return None;
            }
            after
        }
        _ => {
            // The rest of the name, then a sign of assignment.
            let name_end =
                rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_')?;
            if is_of_place(&rest[..name_end].to_lowercase()) {
                return None;
            }
            let sign = rest[name_end..].trim_start_matches(['"', '\'', '\\']);
            let value = sign.strip_prefix(['=', ':'])?;
            let value = value.trim_start_matches([' ', '"', '\'', '\\']);
            text.len() - value.len()
        }
    };
    let value =
        text[start..].split(|c: char| c.is_whitespace() || "\"',;&}\\".contains(c)).next()?;
    let harmless = value.is_empty() || value.starts_with(BLANK) || value.starts_with('/');
    if harmless || ["true", "false", "null", "none"].contains(&value) { None } else { Some(start) }
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
        let digest = blanked.ends_with("sha256:");
        blanked += if !digest && is_token(&word) { BLANK } else { &word };
        word.clear();
        blanked.push(c);
    }
    blanked.pop();
    blanked
}

/// Whether a word looks like a token: a JWT, an access key, or long and of mixed letters.
fn is_token(word: &str) -> bool {
    if word.starts_with("eyJ") && word.matches('.').count() >= 2 {
        return true;
    }
    let starts =
        ["AKIA", "ASIA", "ghp_", "gho_", "ghs_", "github_pat_", "glpat-", "xoxb-", "xoxp-", "sk-"];
    if word.len() >= 16 && starts.iter().any(|start| word.starts_with(start)) {
        return true;
    }
    word.split(['.', '=', '/', '-', '_']).any(|part| {
        part.len() >= HEX
            && part.bytes().all(|byte| byte.is_ascii_hexdigit())
            && part.bytes().any(|byte| byte.is_ascii_digit())
    }) || word.split(['.', '/', '=']).any(|part| {
        part.len() >= MIXED
            && part.bytes().any(|byte| byte.is_ascii_digit())
            && part.bytes().any(|byte| byte.is_ascii_uppercase())
            && part.bytes().any(|byte| byte.is_ascii_lowercase())
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_looks_like_a_token_goes_and_the_rest_stays() {
        for (before, after) in [
            ("--exporter-token=abc --level=info", "--exporter-token=<blanked> --level=info"),
            (r#"{"password": "hunter2", "a": 1}"#, r#"{"password": "<blanked>", "a": 1}"#),
            ("Authorization: Bearer abc.def", "Authorization: Bearer <blanked>"),
            ("http://user:pass@host:1/x", "http://<blanked>@host:1/x"),
            ("http://host:1/x", "http://host:1/x"),
            ("key 0123456789abcdef0123456789abcdef end", "key <blanked> end"),
            (
                "image@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
                "image@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            ),
            ("eyJhbGciOi.eyJzdWIi.c2ln", "<blanked>"),
            ("--exporter-token-file=/etc/token", "--exporter-token-file=/etc/token"),
            ("secretName: exporter-tls", "secretName: exporter-tls"),
            ("token=@x y", "token=<blanked>"),
            ("automountServiceAccountToken: true", "automountServiceAccountToken: true"),
            (
                "pod 8a1c2f1e-9f0a-4b7e-8d66-0e5b7f1b2c3d runs",
                "pod 8a1c2f1e-9f0a-4b7e-8d66-0e5b7f1b2c3d runs",
            ),
            (
                "plimsoll_extender_certificate_not_after_seconds{file=\"client_ca\"} 1",
                "plimsoll_extender_certificate_not_after_seconds{file=\"client_ca\"} 1",
            ),
        ] {
            assert_eq!(text(before), after);
        }
        let pem = "a\n-----BEGIN PRIVATE KEY-----\nMIGH\n-----END PRIVATE KEY-----\nb";
        assert_eq!(text(pem), "a\n<blanked>\nb");
    }

    #[test]
    fn of_variables_only_plimsolls_settings_keep_their_values() {
        let mut object = json!({"kind": "Pod", "metadata": {"managedFields": [1]}, "env": [
            {"name": "PLIMSOLL_LOG_LEVEL", "value": "info"}, {"name": "DB", "value": "short"},
            {"name": "PLIMSOLL_TOKEN", "value": "short"}, {"name": "PLIMSOLL_EXPORTER_TOKEN_FILE", "value": "/t"},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
        ], "args": ["--password", "short", "--x", "y"]});
        value(&mut object);
        let values: Vec<&Value> =
            object["env"].as_array().unwrap().iter().map(|it| &it["value"]).collect();
        assert_eq!(
            values,
            [&json!("info"), &json!(BLANK), &json!(BLANK), &json!("/t"), &Value::Null]
        );
        assert_eq!(object["args"], json!(["--password", BLANK, "--x", "y"]));
        assert_eq!(object["metadata"], json!({}));
    }

    #[test]
    fn a_secret_is_emptied() {
        let mut list = json!({"items": [{"kind": "Secret", "data": {"a": "c2hvcnQ="}}]});
        value(&mut list);
        assert_eq!(list, json!({"items": [{}]}));
    }
}
