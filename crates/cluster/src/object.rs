//! Objects of lists, watches and single reads.
//!
//! Invariant: an object that the API server can store never ends a list or a watch, whatever others wrote into it. Of
//! one that cannot be read as a whole, what can be read counts, and it is marked: what it does not say is unknown, and
//! not absent.

use std::sync::atomic::{AtomicU64, Ordering};

use api::stored::{Partly, partly};
use kube::core::ObjectMeta;
use kube::core::watch::WatchEvent;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

/// Fields that the log names of one object.
const NAMED: usize = 8;

static READ_IN_PART: AtomicU64 = AtomicU64::new(0);

/// How often an object came of which not every field could be read, in lists and watches of every kind.
pub fn objects_read_in_part() -> u64 {
    READ_IN_PART.load(Ordering::Relaxed)
}

/// An object of the API server, of which every field may be absent.
pub(crate) trait Object: DeserializeOwned {
    /// Its kind, for the log.
    const KIND: &'static str;

    /// Its metadata.
    fn about(&self) -> &ObjectMeta;

    /// Takes over the fields that could not be read, as `spec.containers`.
    fn set_lost(&mut self, lost: Vec<String>);
}

/// Reads an object.
///
/// # Errors
///
/// Where the text is no JSON object.
pub(crate) fn read<T: Object>(text: &[u8]) -> serde_json::Result<T> {
    match serde_json::from_slice(text) {
        Ok(object) => Ok(object),
        Err(error) => read_in_part(text, &error),
    }
}

fn read_in_part<T: Object>(text: &[u8], error: &serde_json::Error) -> serde_json::Result<T> {
    let Partly { mut object, lost } = partly::<T>(text)?;
    READ_IN_PART.fetch_add(1, Ordering::Relaxed);
    let ObjectMeta { namespace, name, uid, .. } = object.about();
    let fields = lost.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(" ");
    tracing::warn!(
        kind = T::KIND, namespace, object = name, object_uid = uid, fields, %error,
        "an object cannot be read as a whole; these of its fields count as unknown"
    );
    object.set_lost(lost);
    Ok(object)
}

/// Reads a line of a watch.
///
/// # Errors
///
/// Where it is no event.
pub(crate) fn read_event<T: Object + Clone>(line: &[u8]) -> serde_json::Result<WatchEvent<T>> {
    let error = match serde_json::from_slice(line) {
        Ok(event) => return Ok(event),
        Err(error) => error,
    };
    #[derive(Deserialize)]
    struct RawEvent<'t> {
        #[serde(rename = "type")]
        kind: String,
        #[serde(borrow)]
        object: &'t RawValue,
    }
    let Ok(RawEvent { kind, object }) = serde_json::from_slice(line) else { return Err(error) };
    let object = || read(object.get().as_bytes());
    match kind.as_str() {
        "ADDED" => object().map(WatchEvent::Added),
        "MODIFIED" => object().map(WatchEvent::Modified),
        "DELETED" => object().map(WatchEvent::Deleted),
        _ => Err(error),
    }
}
