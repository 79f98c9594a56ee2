//! Reads only the wanted entries of a JSON object. An exporter serves tens to hundreds of values, of which a poll needs
//! a few; the others are skipped without a copy.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use placement::units::MetricName;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use crate::exporter::gpus::is_of_gpu;

/// Which values of an answer are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted<'a> {
    /// Every value.
    All,
    /// Those of these metrics, and those of single GPUs.
    Only(&'a [MetricName]),
}

impl Wanted<'_> {
    fn contains(self, key: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(metrics) => {
                metrics.iter().any(|metric| metric.as_str() == key) || is_of_gpu(key)
            }
        }
    }
}

/// Reads an object's wanted entries. The last one of a key counts.
pub(super) struct Entries<'w, T> {
    wanted: Wanted<'w>,
    kind: PhantomData<T>,
}

impl<'w, T> Entries<'w, T> {
    pub(super) fn new(wanted: Wanted<'w>) -> Self {
        Self { wanted, kind: PhantomData }
    }
}

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for Entries<'_, T> {
    type Value = BTreeMap<String, T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<'_, T> {
    type Value = BTreeMap<String, T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object of values by metric")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = BTreeMap::new();
        while let Some(key) = map.next_key_seed(Key(self.wanted))? {
            match key {
                Some(key) => drop(entries.insert(key, map.next_value()?)),
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(entries)
    }
}

/// Reads a key; `None` if its value is not wanted.
struct Key<'w>(Wanted<'w>);

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = Option<String>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a metric's name")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Self::Value, E> {
        Ok(self.0.contains(key).then(|| key.to_owned()))
    }
}
