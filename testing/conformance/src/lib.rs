//! Facts about a Kubernetes API server, in [`kubelet`] about a kubelet, and in [`scheduler`] about a scheduler: what
//! Plimsoll's programs and tests rely on.
//!
//! The same facts are tried on the stand-ins (`sim`, by `make test`) and on a real cluster (by `make e2e`), so that
//! tests on the stand-ins count. Invariant: nothing here knows which of the two it talks to.
//!
//! Facts need a namespace of their own. They remove what they create.

/// The list of facts. Each has the name of its function.
macro_rules! facts {
    ($($module:ident::$name:ident),* $(,)?) => {
        /// All facts.
        pub const FACTS: &[Fact] = &[$(Fact {
            name: stringify!($name),
            check: |rig| Box::pin($module::$name(rig)),
        }),*];
    };
}

/// The type `Fact` of a suite whose rig is reset before each fact, and the list of facts.
macro_rules! facts_with_reset {
    ($rig:ident: $($path:tt)*) => {
        /// A statement that holds of every implementation.
        #[derive(Clone, Copy)]
        pub struct Fact {
            /// The statement.
            pub name: &'static str,
            check: for<'a> fn(&'a mut $rig<'_>) -> $crate::Awaited<'a>,
        }

        impl Fact {
            /// Tries to refute it, after a reset of the rig.
            ///
            /// # Errors
            /// Where it does not hold, or a request fails.
            pub async fn check(&self, rig: &mut $rig<'_>) -> Result<(), $crate::Refuted> {
                rig.reset().await?;
                (self.check)(rig).await
            }
        }

        facts![$($path)*];
    };
}

mod binding;
mod bodies;
mod evictions;
pub mod kubelet;
mod leases;
mod objects;
mod rig;
pub mod scheduler;
mod watches;

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

pub use rig::{Refuted, Rig};

/// A future that can be sent between threads.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The future of a fact that changes its rig.
type Awaited<'a> = Pin<Box<dyn Future<Output = Result<(), Refuted>> + 'a>>;

/// Calls `found` every `look` until it returns something. `None` where it returns nothing for `patience`.
async fn found_within<T>(
    patience: Duration,
    look: Duration,
    found: impl AsyncFn() -> Result<Option<T>, Refuted>,
) -> Result<Option<T>, Refuted> {
    let start = Instant::now();
    loop {
        let result = found().await?;
        if result.is_some() || start.elapsed() > patience {
            return Ok(result);
        }
        tokio::time::sleep(look).await;
    }
}

/// A client of an API server, with its credentials.
pub trait Transport: Send + Sync {
    /// Sends a request, with an empty body where `body` is `None`. Returns the answer's status and body.
    ///
    /// # Errors
    /// When there is no answer.
    fn call<'a>(
        &'a self,
        method: &'static str,
        path: &'a str,
        content_type: &'static str,
        body: Option<String>,
    ) -> Later<'a, Result<(u16, String), String>>;
}

/// A statement that holds of every Kubernetes API server.
#[derive(Clone, Copy)]
pub struct Fact {
    /// The statement.
    pub name: &'static str,
    check: for<'a> fn(&'a Rig<'a>) -> Later<'a, Result<(), Refuted>>,
}

impl Fact {
    /// Tries to refute it in a namespace of this server.
    ///
    /// # Errors
    /// Where it does not hold, or the server does not answer.
    pub async fn check(&self, server: &dyn Transport, namespace: &str) -> Result<(), Refuted> {
        (self.check)(&Rig { server, namespace }).await
    }
}

facts![
    objects::an_object_is_created_once_and_gets_uid_version_and_time,
    objects::a_missing_object_is_not_found,
    objects::a_put_from_an_older_version_conflicts,
    objects::a_merge_patch_changes_the_fields_that_it_names,
    objects::a_patch_that_changes_nothing_makes_no_new_version,
    objects::status_and_spec_are_written_apart,
    objects::a_delete_for_another_uid_conflicts,
    objects::lists_select_by_label_and_field,
    objects::events_are_selected_by_the_object_that_they_are_about,
    bodies::a_name_must_be_given_and_legal,
    bodies::an_object_must_be_of_the_kind_and_in_the_namespace_of_its_path,
    bodies::labels_and_annotations_are_maps_of_texts,
    bodies::annotations_have_256_kib_together,
    bodies::a_body_of_an_unknown_type_is_not_read,
    objects::a_strategic_patch_without_lists_that_merge_is_a_merge_patch,
    objects::a_strategic_patch_finds_a_condition_by_its_type,
    leases::of_two_that_take_a_free_lease_one_gets_it,
    leases::a_lease_that_was_renewed_meanwhile_is_not_taken,
    watches::a_watch_from_a_list_shows_every_later_change_in_order,
    watches::an_object_that_begins_to_match_is_added_and_one_that_ceases_is_deleted,
    watches::an_object_that_ceases_to_match_is_deleted_as_it_was_with_the_version_of_the_change,
    watches::a_time_limit_that_is_no_number_is_refused,
    watches::a_streamed_list_shows_all_objects_a_bookmark_and_then_changes,
    watches::a_streamed_list_that_is_asked_for_wrongly_is_refused,
    watches::a_list_in_pages_shows_each_object_once,
    watches::a_watch_with_bookmarks_ends_with_one_that_has_the_newest_version,
    binding::node_and_annotations_come_in_one_version,
    binding::a_bound_pod_is_not_bound_again,
    binding::a_pod_of_the_same_name_is_another_pod,
    binding::a_missing_pod_is_not_bound,
    binding::a_gated_pod_is_not_bound,
    evictions::a_pod_that_a_budget_keeps_is_not_evicted,
    evictions::a_pod_that_has_not_started_is_evicted_whatever_budgets_say,
    evictions::an_eviction_of_another_uid_conflicts,
    evictions::a_dry_run_of_an_eviction_says_what_it_would_and_removes_nothing,
];
