//! A YAML document whose fields keep their order, and its text.

use std::fmt;

use anyhow::{Context, Result, bail};
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_saphyr::DoubleQuoted;

/// A value of a document.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Yaml {
    /// Neither of the others.
    Scalar(Value),
    /// A list.
    List(Vec<Yaml>),
    /// Fields in their order, each once.
    Fields(Vec<(String, Yaml)>),
}

impl Yaml {
    /// The fields in this order.
    pub(super) fn of<const N: usize>(fields: [(&str, Self); N]) -> Self {
        Self::Fields(fields.map(|(name, value)| (name.to_owned(), value)).into())
    }

    /// The fields that have a value, in this order.
    pub(super) fn some<const N: usize>(fields: [(&str, Option<Self>); N]) -> Self {
        let given = |(name, value): (&str, Option<Self>)| Some((name.to_owned(), value?));
        Self::Fields(fields.into_iter().filter_map(given).collect())
    }

    /// A text or a number.
    pub(super) fn scalar(value: impl Into<Value>) -> Self {
        Self::Scalar(value.into())
    }

    /// A field of it.
    pub(super) fn get(&self, name: &str) -> Option<&Self> {
        self.fields().iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// The text of a field of it.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.as_text().ok()
    }

    /// It, as a text.
    ///
    /// # Errors
    ///
    /// If it is none.
    pub(super) fn as_text(&self) -> Result<&str> {
        match self {
            Self::Scalar(Value::String(text)) => Ok(text),
            _ => bail!("no text; write the value in quotes"),
        }
    }

    /// The text at a path; `None` where nothing is there.
    ///
    /// # Errors
    ///
    /// If there is something else, with the path.
    pub(super) fn text_at(&self, path: &[&str]) -> Result<Option<&str>> {
        let found = self.at(path).filter(|value| **value != Self::Scalar(Value::Null));
        found.map(Self::as_text).transpose().with_context(|| path.join("."))
    }

    /// A field of it, or of a field of it, and so on.
    pub(super) fn at(&self, path: &[&str]) -> Option<&Self> {
        path.iter().try_fold(self, |node, name| node.get(name))
    }

    /// As [`Yaml::at`], to change it.
    pub(super) fn at_mut(&mut self, path: &[&str]) -> Option<&mut Self> {
        path.iter().try_fold(self, |node, name| match node {
            Self::Fields(fields) => {
                fields.iter_mut().find(|(key, _)| key == name).map(|(_, value)| value)
            }
            _ => None,
        })
    }

    /// All its fields; none of what has no fields.
    pub(super) fn fields(&self) -> &[(String, Self)] {
        match self {
            Self::Fields(fields) => fields,
            _ => &[],
        }
    }

    /// All its values; none of what is no list.
    pub(super) fn items(&self) -> &[Self] {
        match self {
            Self::List(items) => items,
            _ => &[],
        }
    }

    /// The values of the list at a path; none where there is no list.
    pub(super) fn list(&self, path: &[&str]) -> &[Self] {
        self.at(path).map(Self::items).unwrap_or_default()
    }

    /// The list of this field, which is added where it is missing.
    pub(super) fn list_mut(&mut self, name: &str) -> Option<&mut Vec<Self>> {
        let Self::Fields(fields) = self else { return None };
        let found = fields.iter().position(|(key, _)| key == name);
        let place = found.unwrap_or_else(|| {
            fields.push((name.to_owned(), Self::List(Vec::new())));
            fields.len() - 1
        });
        let (_, value) = fields.get_mut(place)?;
        if *value == Self::Scalar(Value::Null) {
            *value = Self::List(Vec::new());
        }
        match value {
            Self::List(items) => Some(items),
            _ => None,
        }
    }

    /// Removes the last field of a path, and those above it that are then empty.
    pub(super) fn remove(&mut self, path: &[&str]) {
        let (Self::Fields(fields), Some((first, rest))) = (self, path.split_first()) else {
            return;
        };
        let Some(place) = fields.iter().position(|(key, _)| key == first) else { return };
        if let (Some((_, value)), [_, ..]) = (fields.get_mut(place), rest) {
            let before = value.fields().len();
            value.remove(rest);
            if before == 0 || !value.fields().is_empty() {
                return;
            }
        }
        fields.remove(place);
    }

    /// As YAML, which ends with a line's end.
    ///
    /// # Errors
    ///
    /// None that is known.
    pub(super) fn to_yaml(&self) -> Result<String> {
        // Long lines stay whole: a folded one is hard to read, and to compare.
        let options = serde_saphyr::ser_options! { folded_wrap_chars: usize::MAX };
        Ok(serde_saphyr::to_string_with_options(self, options)?)
    }
}

impl Serialize for Yaml {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Scalar(Value::String(text)) if is_hard_to_read(text) => {
                DoubleQuoted(text).serialize(serializer)
            }
            Self::Scalar(value) => value.serialize(serializer),
            Self::List(items) => serializer.collect_seq(items),
            Self::Fields(fields) => {
                serializer.collect_map(fields.iter().map(|(name, value)| (name, value)))
            }
        }
    }
}

impl<'de> Deserialize<'de> for Yaml {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(YamlVisitor)
    }
}

/// Whether lines begin or end so that kubectl fails to read them behind `|`: with a tab, for instance.
fn is_hard_to_read(text: &str) -> bool {
    let lines = text.strip_suffix('\n').unwrap_or(text);
    text.contains('\n') && (lines.is_empty() || lines.trim() != lines)
}

/// A field's name. Those that readers of YAML 1.1 take for something else than a text are refused.
struct Key(String);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let read = match Yaml::deserialize(deserializer)? {
            Yaml::Scalar(Value::String(key)) => return Ok(Self(key)),
            Yaml::Scalar(key) => key.to_string(),
            _ => "fields or a list".to_owned(),
        };
        Err(D::Error::custom(format!(
            "a key that YAML 1.1 reads as {read}: write the key in quotes"
        )))
    }
}

struct YamlVisitor;

impl<'de> Visitor<'de> for YamlVisitor {
    type Value = Yaml;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Yaml, E> {
        Ok(Yaml::scalar(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Yaml, E> {
        Ok(Yaml::scalar(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Yaml, E> {
        Ok(Yaml::scalar(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Yaml, E> {
        Ok(Yaml::scalar(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Yaml, E> {
        Ok(Yaml::scalar(value))
    }

    fn visit_unit<E: Error>(self) -> Result<Yaml, E> {
        Ok(Yaml::Scalar(Value::Null))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Yaml, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Yaml::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Yaml, A::Error> {
        let mut fields = Vec::new();
        while let Some((Key(key), value)) = access.next_entry()? {
            fields.push((key, value));
        }
        Ok(Yaml::Fields(fields))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node() -> impl Strategy<Value = Yaml> {
        let text = "[a-z0-9 :#|'\"\t\n./-]{0,12}|-{0,2}[a-z=,@+:]{0,6}|[0-9]{1,3}(Gi|m|e1)?|yes|~|---|\\PC{0,6}";
        let scalar = prop_oneof![
            any::<i64>().prop_map(Yaml::scalar),
            any::<bool>().prop_map(Yaml::scalar),
            (-1e9..1e9_f64).prop_map(Yaml::scalar),
            Just(Yaml::Scalar(Value::Null)),
            text.prop_map(Yaml::scalar),
        ];
        scalar.prop_recursive(4, 24, 4, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Yaml::List),
                proptest::collection::btree_map(text, inner, 0..4)
                    .prop_map(|fields| Yaml::Fields(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_text_is_read_as_the_node_that_it_was_written_from(node in node()) {
            let text = node.to_yaml().unwrap();
            let read: Result<Yaml, _> = serde_saphyr::from_str(&text);
            prop_assert_eq!(read.as_ref().ok(), Some(&node), "{}", text);
        }
    }

    #[test]
    fn lines_stay_as_they_are_however_long() {
        let long = ["word"; 40].join(" ");
        let text = Yaml::of([
            ("a", Yaml::scalar(long.as_str())),
            ("b", Yaml::scalar(format!("{long}\n{long}\n"))),
        ]);
        let wanted = format!("a: {long}\nb: |\n  {long}\n  {long}\n");
        assert_eq!(text.to_yaml().unwrap(), wanted);
        // kubectl cannot read the first behind `|`.
        let hard = Yaml::List(["\tb\nc", "b\n\n"].map(Yaml::scalar).into());
        assert_eq!(hard.to_yaml().unwrap(), "- \"\\tb\\nc\"\n- \"b\\n\\n\"\n");
    }

    #[test]
    fn what_is_left_empty_by_a_removal_goes_and_nothing_else() {
        let text = "a:\n  b:\n    c: 1\n  d: {}\ne: 2\n";
        let mut node: Yaml = serde_saphyr::from_str(text).unwrap();
        node.remove(&["a", "d", "x"]);
        node.remove(&["x", "y"]);
        assert_eq!(node.to_yaml().unwrap(), text);
        node.remove(&["a", "b", "c"]);
        assert_eq!(node.to_yaml().unwrap(), "a:\n  d: {}\ne: 2\n");
    }
}
