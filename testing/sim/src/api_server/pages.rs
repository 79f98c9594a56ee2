//! Pages of lists.
//!
//! Invariant: all pages of a list show the objects of one version. A real server reads them from etcd's history; here
//! the rest is kept.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};

use super::request::Request;
use crate::objects::failure::Failure;
use crate::objects::kind::Kind;
use crate::objects::selector::Selector;
use crate::objects::store::Store;

/// Lists whose rest is kept. An older one is too old.
const KEPT: usize = 64;

/// The rest of lists that were read in part. Clones share one state.
#[derive(Debug, Clone)]
pub(super) struct Pages {
    store: Store,
    rests: Arc<Mutex<BTreeMap<u64, Rest>>>,
}

#[derive(Debug, Clone)]
struct Rest {
    version: u64,
    objects: VecDeque<Arc<Value>>,
}

/// A page of a list.
pub(super) struct Page {
    /// The version of the whole list.
    version: u64,
    pub(super) objects: Vec<Arc<Value>>,
    /// What to ask for the rest with, and its size; `None` after the last page.
    rest: Option<(u64, usize)>,
    is_selected: bool,
}

impl Page {
    /// The list's metadata.
    pub(super) fn meta(&self) -> Value {
        let mut meta = json!({"resourceVersion": self.version.to_string()});
        if let Some((token, left)) = self.rest {
            meta["continue"] = token.to_string().into();
            if !self.is_selected {
                meta["remainingItemCount"] = left.into();
            }
        }
        meta
    }
}

impl Pages {
    pub(super) fn new(store: Store) -> Self {
        Self { store, rests: Arc::default() }
    }

    /// The first page that a request asks for, or the next one.
    ///
    /// # Errors
    /// 400 where a parameter is no number, 410 where the list is too old.
    pub(super) fn page(
        &self,
        kind: Kind,
        selector: &Selector,
        request: &Request,
    ) -> Result<Page, Failure> {
        let Rest { version, mut objects } = match number(request, "continue")? {
            Some(token) => self.take(token)?,
            None => {
                let (objects, version) = self.store.list(kind);
                let matching = objects.into_iter().filter(|object| selector.matches(object));
                Rest { version, objects: matching.collect() }
            }
        };
        // Resource version 0 asks for any version. That is read from the watch cache, which knows no pages.
        let has_pages = request.parameter("resourceVersion") != "0";
        let limit = match number(request, "limit")? {
            Some(limit) if limit > 0 && has_pages => usize::try_from(limit).unwrap_or(usize::MAX),
            _ => usize::MAX,
        };
        let rest = objects.split_off(limit.min(objects.len()));
        let left = rest.len();
        let rest = (left > 0).then(|| (self.keep(Rest { version, objects: rest }), left));
        let is_selected = ["fieldSelector", "labelSelector"]
            .iter()
            .any(|name| !request.parameter(name).is_empty());
        Ok(Page { version, objects: objects.into(), rest, is_selected })
    }

    /// A page can be asked for again.
    fn take(&self, token: u64) -> Result<Rest, Failure> {
        let rests = self.rests.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = rests.get(&token).filter(|rest| self.store.reaches(rest.version));
        rest.cloned().ok_or_else(|| {
            let why = "The provided continue parameter is too old to display a consistent list result. You can start a new \
                       list without the continue parameter.";
            Failure::new(410, "Expired", why)
        })
    }

    fn keep(&self, rest: Rest) -> u64 {
        let mut rests = self.rests.lock().unwrap_or_else(PoisonError::into_inner);
        let token = rests.last_key_value().map_or(1, |(newest, _)| newest + 1);
        rests.insert(token, rest);
        if rests.len() > KEPT {
            rests.pop_first();
        }
        token
    }
}

/// A parameter that is a number; `None` where it is missing.
fn number(request: &Request, name: &str) -> Result<Option<u64>, Failure> {
    match request.parameter(name) {
        "" => Ok(None),
        text => text.parse::<u64>().map(Some).map_err(|_| {
            Failure::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax"))
        }),
    }
}
