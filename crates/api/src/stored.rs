//! Objects of Kubernetes as its API server may have stored them.
//!
//! Invariant: one field that cannot be read costs that field alone. Other programs write these objects, and Go takes
//! values that are none here, such as a time at the end of the year 9999.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_json::value::{RawValue, to_raw_value};

/// The fields of an object, each as its text.
type Fields<'t> = BTreeMap<String, &'t RawValue>;

/// An object of which not every field could be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partly<T> {
    /// The object without the fields that cannot be read.
    pub object: T,
    /// These fields, as `spec.containers`.
    pub lost: Vec<String>,
}

/// Reads an object without the fields that cannot be read: those of its parts (`metadata`, `spec`, …), or a part as a
/// whole where it has none. Every field of `T` must have a default.
///
/// # Errors
///
/// Where the text is no JSON object.
///
/// # Examples
///
/// ```
/// use api::stored::{Partly, partly};
///
/// #[derive(serde::Deserialize, Default)]
/// #[serde(default)]
/// struct Pod { spec: Spec }
/// #[derive(serde::Deserialize, Default)]
/// #[serde(default)]
/// struct Spec { node: String, priority: i32 }
///
/// let Partly { object, lost } = partly::<Pod>(br#"{"spec": {"node": "a", "priority": "high"}}"#)?;
/// assert_eq!((object.spec.node.as_str(), object.spec.priority), ("a", 0));
/// assert_eq!(lost, ["spec.priority"]);
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn partly<T: DeserializeOwned>(text: &[u8]) -> serde_json::Result<Partly<T>> {
    let parts: Fields = serde_json::from_slice(text)?;
    let mut kept: BTreeMap<String, Box<RawValue>> = BTreeMap::new();
    let mut lost = Vec::new();
    for (name, part) in parts {
        if is_read::<T>(&[(&name, part)].into()) {
            kept.insert(name, part.to_owned());
            continue;
        }
        match without_unread::<T>(&name, part) {
            Some((part, fields)) => {
                lost.extend(fields.into_iter().map(|field| format!("{name}.{field}")));
                kept.insert(name, part);
            }
            None => lost.push(name),
        }
    }
    let object = serde_json::from_slice(&serde_json::to_vec(&kept)?)?;
    Ok(Partly { object, lost })
}

/// A part without those of its fields that cannot be read, and these; `None` where it cannot be read without them
/// either.
fn without_unread<T: DeserializeOwned>(
    name: &String,
    part: &RawValue,
) -> Option<(Box<RawValue>, Vec<String>)> {
    let mut fields = serde_json::from_str::<Fields>(part.get()).ok()?;
    let mut lost = Vec::new();
    fields.retain(|field, value| {
        let alone = to_raw_value(&BTreeMap::from([(field, value)]));
        let is_read = alone.is_ok_and(|alone| is_read::<T>(&[(name, &*alone)].into()));
        if !is_read {
            lost.push(field.clone());
        }
        is_read
    });
    let part = to_raw_value(&fields).ok()?;
    is_read::<T>(&[(name, &*part)].into()).then_some((part, lost))
}

fn is_read<T: DeserializeOwned>(part: &BTreeMap<&String, &RawValue>) -> bool {
    serde_json::to_vec(part).is_ok_and(|text| serde_json::from_slice::<T>(&text).is_ok())
}

/// A list, read one object at a time: each without the fields that cannot be read, and without what is no object.
///
/// # Errors
///
/// Where it is no list.
pub fn items<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let items = Option::<Vec<Box<RawValue>>>::deserialize(deserializer)?.unwrap_or_default();
    let read = |item: Box<RawValue>| {
        let whole = serde_json::from_str(item.get()).ok();
        whole.or_else(|| Some(partly(item.get().as_bytes()).ok()?.object))
    };
    Ok(items.into_iter().filter_map(read).collect())
}

/// A moment that an object states.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// When; `None` where that is no time here: a [`Timestamp`] ends at `9999-12-30T22:00:00Z`, and Go's times do not.
    pub at: Option<Timestamp>,
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Stated {
            Text(String),
            Other(IgnoredAny),
        }
        Ok(match Stated::deserialize(deserializer)? {
            Stated::Text(text) => Self { at: text.parse().ok() },
            Stated::Other(_) => Self::default(),
        })
    }
}

/// Reads a time; `None` where it is absent or no time here, as [`Moment`] says.
///
/// # Errors
///
/// Where the text is no JSON.
pub fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    Ok(Option::<Moment>::deserialize(deserializer)?.and_then(|moment| moment.at))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Object {
        metadata: BTreeMap<String, String>,
        spec: Spec,
        data: Vec<u8>,
        #[serde(deserialize_with = "time")]
        at: Option<Timestamp>,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Spec {
        count: u8,
        words: Vec<String>,
    }

    fn read(text: &str) -> (Object, Vec<String>) {
        let Partly { object, lost } = partly(text.as_bytes()).unwrap();
        (object, lost)
    }

    #[test]
    fn a_field_that_cannot_be_read_costs_itself_alone() {
        let (object, lost) = read(
            r#"{"kind": {"deep": [[]]}, "metadata": {"name": "a", "é\"\n": 1}, "data": [256],
                "spec": {"count": -1, "words": ["b"], "other": {"x": 1e999}}}"#,
        );
        assert_eq!(object.metadata, [("name".to_owned(), "a".to_owned())].into());
        assert_eq!(object.spec, Spec { count: 0, words: vec!["b".to_owned()] });
        assert_eq!(lost, ["data", "metadata.é\"\n", "spec.count"]);
    }

    #[test]
    fn a_part_of_another_type_is_lost_and_what_is_no_object_is_an_error() {
        let (object, lost) = read(r#"{"metadata": [], "spec": 7, "data": null}"#);
        assert_eq!(object, Object::default());
        assert_eq!(lost, ["data", "metadata", "spec"]);
        let (object, lost) = read(r#"{"data": {}, "at": {"a": [1]}, "spec": {"count": 3}}"#);
        assert_eq!((object.spec.count, lost), (3, vec!["data".to_owned()]));
        assert_eq!(read(r#"{"data": {"a": 1}}"#).1, ["data"]);
        for text in ["", "[]", "7", "null", "{", r#"{"a"}"#] {
            assert!(partly::<Object>(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn a_time_that_is_none_here_is_absent() {
        let read = |text: &str| serde_json::from_str::<Object>(&format!(r#"{{"at": {text}}}"#));
        for none in [
            r#""9999-12-31T23:59:59Z""#,
            r#""10000-01-01T00:00:00Z""#,
            r#""-001-12-31T01:00:00Z""#,
            r#""2026-11-20T09:00:00+99:00""#,
            r#""""#,
            r#""now""#,
            "null",
            "7",
            "{}",
            "[[1]]",
        ] {
            assert_eq!(read(none).unwrap().at, None, "{none}");
        }
        let there = read(r#""2026-11-20T10:00:00.123456+01:00""#).unwrap().at;
        assert_eq!(there, "2026-11-20T09:00:00.123456Z".parse().ok());
    }

    #[test]
    fn an_item_of_a_list_costs_itself_alone() {
        #[derive(Deserialize)]
        struct List {
            #[serde(default, deserialize_with = "items")]
            items: Vec<Object>,
        }
        let read = |text: &str| serde_json::from_str::<List>(text).unwrap().items;
        let found = read(r#"{"items": [{"data": [1]}, {"data": [256]}, 7, {"data": [2]}]}"#);
        let data: Vec<_> = found.into_iter().map(|object| object.data).collect();
        assert_eq!(data, [vec![1], vec![], vec![2]]);
        assert!(read(r#"{"items": null}"#).is_empty() && read("{}").is_empty());
    }
}
