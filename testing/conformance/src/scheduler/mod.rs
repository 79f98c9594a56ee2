//! Facts about a scheduler with extenders: what an extender relies on, in the scheduler's own order and words.
//!
//! The suite has two extenders of its own, which log their calls and answer as each fact sets them. Invariant: nothing
//! here knows whether the scheduler is kube-scheduler.

mod binding;
mod choice;
mod extender;
mod messages;
mod preemption;
mod rig;

pub use extender::{Answers, Entry, Extender, ExtenderCall, Verb};
pub use rig::{RESOURCE, SCHEDULER, SchedulerRig};

facts_with_reset![SchedulerRig:
    choice::filter_is_asked_by_name_about_the_nodes_that_pass_the_schedulers_own_filters,
    choice::the_next_extender_is_asked_about_the_nodes_that_the_last_one_let_pass,
    choice::a_node_that_filter_rejects_is_not_chosen_and_not_scored,
    choice::a_single_node_that_passes_is_not_scored,
    choice::scores_count_by_their_weights,
    choice::scores_above_ten_count_in_full,
    choice::identical_pods_in_a_row_are_each_asked_about,
    choice::pods_of_other_schedulers_are_left_alone,
    messages::an_error_of_filter_is_the_message_and_the_pod_is_tried_again,
    messages::a_node_that_filter_was_not_asked_about_makes_its_answer_an_error,
    messages::filters_reasons_are_the_message_and_a_change_of_a_node_has_the_pod_tried_again,
    preemption::a_pod_that_no_eviction_helps_is_written_once,
    preemption::preempt_is_asked_with_victims_by_uid_and_a_node_that_it_leaves_out_is_no_candidate,
    preemption::where_preempt_leaves_no_node_nothing_is_evicted,
    binding::bind_is_asked_of_the_extender_for_the_pods_that_it_manages_and_no_others,
    binding::the_next_filter_may_come_before_the_last_bind_is_answered,
    binding::after_a_failed_bind_the_pod_is_tried_again_from_filter,
];
