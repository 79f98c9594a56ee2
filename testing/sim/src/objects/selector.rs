//! Field and label selectors of lists and watches: `=`, `==`, `!=`, and for labels also `key` and `!key`. Set
//! expressions (`in`, `notin`) are refused.

use serde_json::Value;

use super::failure::Failure;

/// The fields that can be selected by: a part of those that a real API server knows.
const FIELDS: [&str; 11] = [
    "metadata.name",
    "metadata.namespace",
    "spec.nodeName",
    "spec.unschedulable",
    "status.phase",
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "reason",
    "type",
];

/// Which objects a list or watch is about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    namespace: Option<String>,
    terms: Vec<Term>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Term {
    subject: Subject,
    test: Test,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Subject {
    Field(String),
    Label(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
    Is(String),
    IsNot(String),
    Exists,
    Missing,
}

impl Selector {
    /// Selects the objects in a namespace (`None`: in all) that match both selectors, given as the URL's parameters.
    ///
    /// # Errors
    /// 400 where a selector is not understood.
    pub(crate) fn new(
        namespace: Option<String>,
        fields: &str,
        labels: &str,
    ) -> Result<Self, Failure> {
        let mut terms = Vec::new();
        for text in parts(fields) {
            terms.push(field(text)?);
        }
        for text in parts(labels) {
            terms.push(label(text)?);
        }
        Ok(Self { namespace, terms })
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        let here = self
            .namespace
            .as_deref()
            .is_none_or(|namespace| object["metadata"]["namespace"] == namespace);
        here && self.terms.iter().all(|term| term.matches(object))
    }
}

impl Term {
    fn matches(&self, object: &Value) -> bool {
        let value = match &self.subject {
            Subject::Field(path) => Some(text_at(object, path)),
            Subject::Label(key) => object["metadata"]["labels"][key].as_str().map(str::to_owned),
        };
        match &self.test {
            Test::Is(wanted) => value.as_ref() == Some(wanted),
            Test::IsNot(refused) => value.as_ref() != Some(refused),
            Test::Exists => value.is_some(),
            Test::Missing => value.is_none(),
        }
    }
}

/// A field's value. A missing field is empty, as in Kubernetes: `spec.nodeName=` selects the unbound pods.
fn text_at(object: &Value, path: &str) -> String {
    match path.split('.').fold(object, |value, key| &value[key]) {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

fn field(text: &str) -> Result<Term, Failure> {
    let (path, test) = comparison(text)
        .ok_or_else(|| Failure::bad_request(format!("invalid field selector: {text}")))?;
    if !FIELDS.contains(&path) {
        let message = format!("field label not supported: {path}");
        return Err(Failure::bad_request(message));
    }
    let subject = Subject::Field(path.to_owned());
    Ok(Term { subject, test })
}

fn label(text: &str) -> Result<Term, Failure> {
    if text.contains([' ', '(', ')']) {
        let message = format!("set expressions are not served by this stand-in: {text}");
        return Err(Failure::bad_request(message));
    }
    let (key, test) = comparison(text).unwrap_or_else(|| match text.strip_prefix('!') {
        Some(key) => (key, Test::Missing),
        None => (text, Test::Exists),
    });
    let subject = Subject::Label(key.to_owned());
    Ok(Term { subject, test })
}

fn comparison(text: &str) -> Option<(&str, Test)> {
    if let Some((key, value)) = text.split_once("!=") {
        return Some((key, Test::IsNot(value.to_owned())));
    }
    let (key, value) = text.split_once("==").or_else(|| text.split_once('='))?;
    Some((key, Test::Is(value.to_owned())))
}
