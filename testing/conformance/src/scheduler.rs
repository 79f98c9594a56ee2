//! Facts about a scheduler that talks to extenders: what an extender relies on, in the scheduler's own
//! order and words.
//!
//! Two extenders of the suite's own write down what they are asked and answer as they are told.
//! Invariant: as with the API, nothing here knows whether the scheduler is kube-scheduler.

mod binding;
mod choice;
mod extender;
mod rig;
mod words;

pub use extender::{Call, Entry, Extender, Orders, Verb};
pub use rig::{RESOURCE, Rig, SCHEDULER};

facts_from_fresh![
    choice::filter_is_asked_by_name_about_the_nodes_that_pass_the_schedulers_own_filters,
    choice::the_next_extender_is_asked_about_the_nodes_that_the_last_one_left,
    choice::a_node_that_filter_left_out_is_not_chosen_and_not_scored,
    choice::a_single_node_that_is_left_is_not_scored,
    choice::scores_count_by_their_weights,
    choice::pods_of_other_schedulers_are_left_alone,
    words::an_error_of_filter_is_told_and_the_pod_is_tried_again,
    words::a_node_that_filter_was_not_asked_about_makes_its_answer_an_error,
    words::what_filter_says_of_nodes_is_told_and_a_change_of_a_node_has_the_pod_tried_again,
    binding::bind_is_asked_of_the_extender_for_the_pods_that_it_manages_and_no_others,
    binding::the_next_filter_may_come_before_the_last_bind_is_answered,
    binding::after_a_failed_bind_the_pod_is_tried_again_from_filter,
];
