//! A command or its arguments, read without a text of its own for each word: a pod may have 500,000 of one letter.

use std::fmt;

use serde::de::{DeserializeSeed, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Words, one after the other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Words {
    text: String,
    /// Where each word ends in `text`. The API server refuses pods of more than 3 MB.
    ends: Vec<u32>,
}

impl Words {
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let ranges = starts.zip(&self.ends);
        ranges.filter_map(|(start, end)| self.text.get(start as usize..*end as usize))
    }
}

impl<'de> Deserialize<'de> for Words {
    /// Reads a list of texts, or `null` as none.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WordsVisitor)
    }
}

struct WordsVisitor;

impl<'de> Visitor<'de> for WordsVisitor {
    type Value = Words;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a list of texts")
    }

    fn visit_unit<E>(self) -> Result<Words, E> {
        Ok(Words::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Words, A::Error> {
        let mut words = Words::default();
        while list.next_element_seed(Word(&mut words))?.is_some() {}
        Ok(words)
    }
}

/// Reads one more word.
struct Word<'a>(&'a mut Words);

impl<'de> DeserializeSeed<'de> for Word<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Word<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a text")
    }

    fn visit_str<E: serde::de::Error>(self, word: &str) -> Result<(), E> {
        self.0.text.push_str(word);
        let end = u32::try_from(self.0.text.len());
        self.0.ends.push(end.map_err(|_| E::custom("a command of more than 4 GiB"))?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_they_are() {
        for words in [vec![], vec!["a"], vec!["", "a b", "\"<\\é\n", ""]] {
            let text = serde_json::to_string(&words).unwrap();
            let read: Words = serde_json::from_str(&text).unwrap();
            assert_eq!(read.iter().collect::<Vec<_>>(), words);
            assert_eq!(read.len(), words.len());
        }
        assert_eq!(serde_json::from_str::<Words>("null").unwrap(), Words::default());
        assert!(serde_json::from_str::<Words>("[1]").is_err());
    }

    #[test]
    fn words_of_one_letter_take_no_more_memory_than_twice_their_json() {
        let json = format!("[{}\"a\"]", "\"a\",".repeat(399_999));
        let read: Words = serde_json::from_str(&json).unwrap();
        let bytes = read.text.capacity() + 4 * read.ends.capacity();
        assert!(read.len() == 400_000 && bytes < 2 * json.len(), "{bytes}");
    }
}
