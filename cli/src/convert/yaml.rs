//! A YAML document whose fields keep their order, and its text.

use std::fmt;

use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::format::is_hidden;
use crate::output::quoted;

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
        match self.get(name) {
            Some(Self::Scalar(Value::String(text))) => Some(text),
            _ => None,
        }
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
    pub(super) fn to_yaml(&self) -> String {
        let mut text = String::new();
        self.write(0, &mut text);
        text
    }

    /// Writes lines that all have this indent, or more.
    fn write(&self, indent: usize, text: &mut String) {
        let blanks = " ".repeat(indent);
        match self {
            Self::Fields(fields) if !fields.is_empty() => {
                for (key, value) in fields {
                    *text += &format!("{blanks}{}:", in_line(key));
                    match value {
                        Self::Fields(fields) if !fields.is_empty() => {
                            text.push('\n');
                            value.write(indent + 2, text);
                        }
                        Self::List(items) if !items.is_empty() => {
                            text.push('\n');
                            value.write(indent, text);
                        }
                        _ => *text += &format!(" {}\n", value.short(indent + 2)),
                    }
                }
            }
            Self::List(items) if !items.is_empty() => {
                for item in items {
                    let mut inner = String::new();
                    item.write(indent + 2, &mut inner);
                    *text += &format!("{blanks}- {}", inner.trim_start_matches(' '));
                }
            }
            _ => *text += &format!("{blanks}{}\n", self.short(indent)),
        }
    }

    /// What begins behind a field's name or a dash. Further lines have this indent.
    fn short(&self, indent: usize) -> String {
        match self {
            Self::Fields(_) => "{}".to_owned(),
            Self::List(_) => "[]".to_owned(),
            Self::Scalar(Value::String(text)) if is_block(text) => {
                let blanks = " ".repeat(indent);
                let mut block = if text.ends_with('\n') { "|" } else { "|-" }.to_owned();
                for line in text.lines() {
                    block += "\n";
                    if !line.is_empty() {
                        block += &format!("{blanks}{line}");
                    }
                }
                block
            }
            Self::Scalar(Value::String(text)) => in_line(text),
            Self::Scalar(value) => value.to_string(),
        }
    }
}

/// Whether a text can stand as lines behind `|`.
fn is_block(text: &str) -> bool {
    let last = text.strip_suffix('\n').unwrap_or(text);
    last.contains('\n')
        && !text.starts_with([' ', '\t', '\n'])
        && !last.ends_with([' ', '\t', '\n'])
        && !text.contains(|c| c != '\n' && c != '\t' && is_hidden(c))
}

/// A text in one line: without quotes where every reader of YAML takes it for a text.
fn in_line(text: &str) -> String {
    if is_plain(text) || is_amount(text) { text.to_owned() } else { quoted(text) }
}

fn is_plain(text: &str) -> bool {
    let words =
        ["y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf", "infinity"];
    let flag = text.strip_prefix("--").or(text.strip_prefix('-'));
    let word = flag.unwrap_or(text);
    word.starts_with(|first: char| first.is_ascii_alphabetic() || first == '/')
        && !word.ends_with(':')
        && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-./:=,@+".contains(&byte))
        && !words.contains(&word.to_lowercase().as_str())
}

/// Whether it is a quantity with a unit, as `16Gi`, which is no number in YAML.
fn is_amount(text: &str) -> bool {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    unit.len() < text.len() && ["Ki", "Mi", "Gi", "Ti", "m"].contains(&unit)
}

impl<'de> Deserialize<'de> for Yaml {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(YamlVisitor)
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
        while let Some(field) = access.next_entry()? {
            fields.push(field);
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
            let text = node.to_yaml();
            let read: Result<Yaml, _> = serde_saphyr::from_str(&text);
            prop_assert_eq!(read.as_ref().ok(), Some(&node), "{}", text);
        }
    }

    #[test]
    fn what_is_left_empty_by_a_removal_goes_and_nothing_else() {
        let text = "a:\n  b:\n    c: 1\n  d: {}\ne: 2\n";
        let mut node: Yaml = serde_saphyr::from_str(text).unwrap();
        node.remove(&["a", "d", "x"]);
        node.remove(&["x", "y"]);
        assert_eq!(node.to_yaml(), text);
        node.remove(&["a", "b", "c"]);
        assert_eq!(node.to_yaml(), "a:\n  d: {}\ne: 2\n");
    }
}
