//! The API server's answers, read one object at a time.
//!
//! Invariant: of an answer, the text of at most one object is in memory. Any user can create pods of 1.5 MB, and the
//! JSON of a text of `<` is six times as long; a page of 500 of them, held as a whole as kube's own calls do, would be
//! larger than the memory limits of the programs.

use std::pin::Pin;

use futures::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _};
use http::header::{ACCEPT_ENCODING, HeaderValue};
use kube::api::{ListParams, Request};
use kube::core::watch::WatchEvent;
use kube::{Client, Error};
use serde::Deserialize;
use tokio::time::Instant;

use crate::meta::null_is_default;
use crate::object::{self, Object, read_event};

/// Bytes of a buffer that are kept for the next object. Most objects are smaller.
const KEPT: usize = 64 * 1024;

/// Objects of a page of a list.
pub(crate) const PAGE: u32 = 500;

/// How much is read of one whole list for a question, all of its pages together. A longer one is an error of the call.
/// Any user can make lists of some kinds as long as etcd takes; what is kept of an object has an end, and so have the
/// number of objects and the time that is spent on what is not kept.
///
/// The lists with which a watch begins have no such end: what is not in them counts as deleted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Most {
    bytes: u64,
    objects: u64,
}

/// Of small objects of one namespace: 500 to 1,000 of a usual size. Its users may write some kinds.
pub(crate) const OF_A_NAMESPACE: Most = Most { bytes: 1 << 20, objects: 10_000 };

/// Of the pods of one node: a thousand of a usual size, and some tens of the largest.
pub(crate) const OF_A_NODE: Most = Most { bytes: 64 << 20, objects: 10_000 };

/// Of objects of which each node has one: more than any cluster has nodes.
pub(crate) const OF_ALL_NODES: Most = Most { bytes: 64 << 20, objects: 100_000 };

impl Most {
    const ENDLESS: Self = Self { bytes: u64::MAX, objects: u64::MAX };

    /// Counts what was read.
    fn take(&mut self, bytes: usize, objects: u64) -> kube::Result<()> {
        let left = (self.bytes.checked_sub(bytes as u64), self.objects.checked_sub(objects));
        let (Some(bytes), Some(objects)) = left else {
            let why = "the list is longer than is read of such objects";
            return Err(Error::ReadEvents(std::io::Error::other(why)));
        };
        *self = Self { bytes, objects };
        Ok(())
    }
}

/// A request that kube builds.
pub(crate) type Built = Result<http::Request<Vec<u8>>, kube::core::request::Error>;

type Input = Pin<Box<dyn AsyncBufRead + Send>>;

/// Sends a request. Returns the object of the answer.
pub(crate) async fn object<T: Object>(client: &Client, request: Built) -> kube::Result<T> {
    Ok(object_and_text(client, request).await?.0)
}

/// As [`object()`], with the text of the answer.
pub(crate) async fn object_and_text<T: Object>(
    client: &Client,
    request: Built,
) -> kube::Result<(T, Vec<u8>)> {
    let mut text = Vec::new();
    let mut input = send(client, request).await?;
    input.read_to_end(&mut text).await.map_err(Error::ReadEvents)?;
    Ok((object::read(&text).map_err(Error::SerdeError)?, text))
}

/// Sends a request, and waits for the end of a good answer, which is not kept.
pub(crate) async fn acknowledged(client: &Client, request: Built) -> kube::Result<()> {
    let mut input = send(client, request).await?;
    loop {
        let read = input.fill_buf().await.map_err(Error::ReadEvents)?.len();
        if read == 0 {
            return Ok(());
        }
        input.consume_unpin(read);
    }
}

async fn send(client: &Client, request: Built) -> kube::Result<Input> {
    Ok(Box::pin(client.request_stream(request.map_err(Error::BuildRequest)?).await?))
}

/// The answer to a watch: one event a line.
pub(crate) struct Lines {
    input: Input,
    line: Vec<u8>,
    /// When it was opened.
    pub(crate) since: Instant,
    /// Whether a byte has come.
    pub(crate) has_spoken: bool,
}

impl Lines {
    /// Sends the request of a watch.
    pub(crate) async fn open(client: &Client, request: Built) -> kube::Result<Self> {
        let mut request = request;
        if let Ok(request) = &mut request {
            // kube's client decompresses the first member of a gzip stream alone, and Kubernetes writes one for each
            // event.
            let identity = HeaderValue::from_static("identity");
            request.headers_mut().insert(ACCEPT_ENCODING, identity);
        }
        let input = send(client, request).await?;
        Ok(Self { input, line: Vec::new(), since: Instant::now(), has_spoken: false })
    }

    /// The next event; `None` at the end.
    pub(crate) async fn next<T: Object + Clone>(&mut self) -> kube::Result<Option<WatchEvent<T>>> {
        self.line.clear();
        self.line.shrink_to(KEPT);
        let read = self.input.read_until(b'\n', &mut self.line).await;
        self.has_spoken |= read.map_err(Error::ReadEvents)? > 0;
        match read_event(&self.line) {
            Ok(event) => Ok(Some(event)),
            // The end, or a line that the end cuts off.
            Err(error) if error.is_eof() && !self.line.ends_with(b"\n") => Ok(None),
            Err(error) => Err(Error::SerdeError(error)),
        }
    }
}

/// The answer to a list.
pub(crate) struct Items {
    input: Input,
    splitter: Splitter,
    most: Most,
}

/// What a list says of itself.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ListMeta {
    /// The version of the whole list; empty where the server gives none.
    #[serde(rename = "resourceVersion", deserialize_with = "null_is_default")]
    pub(crate) version: String,
    /// What to ask for the next page with; empty after the last.
    #[serde(rename = "continue", deserialize_with = "null_is_default")]
    pub(crate) continue_token: String,
}

impl Items {
    /// Sends the request of a list.
    pub(crate) async fn open(client: &Client, request: Built) -> kube::Result<Self> {
        let input = send(client, request).await?;
        Ok(Self { input, splitter: Splitter::default(), most: Most::ENDLESS })
    }

    /// The next object; `None` after the last.
    pub(crate) async fn next<T: Object>(&mut self) -> kube::Result<Option<T>> {
        self.splitter.item.clear();
        self.splitter.item.shrink_to(KEPT);
        loop {
            let bytes = self.input.fill_buf().await.map_err(Error::ReadEvents)?;
            if bytes.is_empty() {
                return Ok(None);
            }
            let (read, is_whole) = self.splitter.take(bytes);
            self.input.consume_unpin(read);
            self.most.take(read, u64::from(is_whole))?;
            if is_whole {
                return object::read(&self.splitter.item).map(Some).map_err(Error::SerdeError);
            }
        }
    }

    /// What the list says of itself, after its last object.
    ///
    /// # Errors
    ///
    /// Where the answer was cut off, or is no list.
    pub(crate) fn end(self) -> kube::Result<ListMeta> {
        #[derive(Deserialize)]
        struct ListEnd {
            #[serde(default, deserialize_with = "null_is_default")]
            metadata: ListMeta,
        }
        let list = serde_json::from_slice::<ListEnd>(&self.splitter.rest);
        list.map(|list| list.metadata).map_err(Error::SerdeError)
    }
}

/// Calls `take` with each object of a list. All pages are read, `most` of them together.
pub(crate) async fn each<T: Object>(
    client: &Client,
    of: &Request,
    params: &ListParams,
    mut most: Most,
    mut take: impl FnMut(T),
) -> kube::Result<()> {
    let mut page = params.clone();
    loop {
        let mut items = Items::open(client, of.list(&page)).await?;
        items.most = most;
        while let Some(object) = items.next().await? {
            take(object);
        }
        most = items.most;
        let token = items.end()?.continue_token;
        if token.is_empty() {
            return Ok(());
        }
        page.continue_token = Some(token);
    }
}

/// Divides the JSON of a list into the objects of its `items` and the rest, without parsing either.
#[derive(Default)]
struct Splitter {
    /// Objects and arrays that are open.
    depth: usize,
    in_text: bool,
    /// Whether the last byte of the text was a backslash that escapes the next.
    escaped: bool,
    /// Whether the array of the items is open. It is the only array in a list's outermost object.
    in_items: bool,
    /// The object that is being read.
    item: Vec<u8>,
    /// The list without its items.
    rest: Vec<u8>,
}

/// The depth between the items.
const BETWEEN: usize = 2;

impl Splitter {
    /// Reads up to the end of an item, or all. Returns how many bytes were read, and whether `item` is whole.
    fn take(&mut self, bytes: &[u8]) -> (usize, bool) {
        // Where the part begins that is not yet copied.
        let mut from = 0;
        for (at, byte) in bytes.iter().enumerate() {
            if self.in_text {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_text = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.in_text = true,
                b'{' | b'[' => {
                    let (begins_items, begins_item) =
                        (*byte == b'[' && self.depth == 1, self.in_items && self.depth == BETWEEN);
                    if begins_items {
                        self.copy(&bytes[from..=at]);
                        self.in_items = true;
                    } else if begins_item {
                        from = at;
                    }
                    self.depth += 1;
                }
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.in_items && self.depth == BETWEEN {
                        self.item.extend_from_slice(&bytes[from..=at]);
                        return (at + 1, true);
                    }
                    if self.in_items && self.depth < BETWEEN {
                        self.in_items = false;
                        from = at;
                    }
                }
                _ => {}
            }
        }
        self.copy(&bytes[from.min(bytes.len())..]);
        (bytes.len(), false)
    }

    /// Keeps a part of what was read. What stands between the items is left out.
    fn copy(&mut self, bytes: &[u8]) {
        match (self.in_items, self.depth) {
            (false, _) => self.rest.extend_from_slice(bytes),
            (true, BETWEEN) => {}
            (true, _) => self.item.extend_from_slice(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    /// The items and the rest of a text that comes in pieces of so many bytes.
    fn split(text: &[u8], piece: usize) -> (Vec<Value>, Vec<u8>) {
        let mut splitter = Splitter::default();
        let mut items = Vec::new();
        for mut bytes in text.chunks(piece) {
            while !bytes.is_empty() {
                let (read, is_whole) = splitter.take(bytes);
                bytes = &bytes[read..];
                if is_whole {
                    items.push(serde_json::from_slice(&splitter.item).unwrap());
                    splitter.item.clear();
                }
            }
        }
        (items, splitter.rest)
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[\"\\\\{}\\[\\],:a<\u{e9}\n]{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[\"\\\\{}a]{0,3}", inner, 0..3)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_list_is_divided_into_its_items_whatever_the_pieces_that_it_comes_in(
            items in prop::collection::vec(prop::collection::btree_map("[a\"\\]]{0,3}", value(), 0..3), 0..4),
            meta in value(), pretty in any::<bool>(), piece in 1_usize..40,
        ) {
            let items: Vec<Value> = items.into_iter().map(|map| Value::Object(map.into_iter().collect())).collect();
            for list in [
                json!({"kind": "PodList", "metadata": {"resourceVersion": "7", "x": meta}, "items": items}),
                json!({"zitems": "[", "items": items, "metadata": {"resourceVersion": "7"}}),
            ] {
                let text = if pretty { serde_json::to_vec_pretty(&list) } else { serde_json::to_vec(&list) };
                let (found, rest) = split(&text.unwrap(), piece);
                prop_assert_eq!(&found, &items);
                let rest: Value = serde_json::from_slice(&rest).unwrap();
                prop_assert_eq!(&rest["metadata"], &list["metadata"]);
                prop_assert_eq!(&rest["items"], &json!([]));
            }
        }
    }

    #[test]
    fn a_list_without_items_is_empty() {
        for list in
            [r#"{"metadata":{"continue":"c"},"items":null}"#, r#"{"metadata":{"continue":"c"}}"#]
        {
            let (items, rest) = split(list.as_bytes(), 3);
            assert!(items.is_empty());
            assert_eq!(rest, list.as_bytes());
        }
    }
}
