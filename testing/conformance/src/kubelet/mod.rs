//! Facts about a kubelet: what a device plugin relies on, in the kubelet's own order and words.
//!
//! The suite has a device plugin of its own, for a resource of its own, which logs its calls. Invariant: nothing here
//! knows whether the kubelet is real.

mod admission;
mod plugin;
mod records;
mod registration;
mod restarts;
mod reuse;
mod rig;

pub use plugin::{Behaviour, Ids, Plugin, PluginCall};
pub use records::{DevicesByContainer, Records, Shown};
pub use rig::{KubeletRig, Machine, RESOURCE};

facts_with_reset![KubeletRig:
    registration::the_node_offers_the_devices_that_a_plugin_lists,
    registration::unhealthy_devices_stay_in_the_capacity_and_are_not_offered,
    registration::without_its_plugin_a_node_offers_nothing_and_running_pods_stay,
    registration::a_pod_bound_while_the_plugin_is_away_fails_at_admission,
    registration::a_plugin_without_optional_calls_is_asked_to_allocate_alone,
    registration::a_resource_that_no_plugin_registered_is_ignored,
    admission::preferred_comes_before_allocate_and_that_before_start,
    admission::a_pod_that_runs_is_ready,
    admission::all_containers_are_allocated_in_order_before_any_starts,
    admission::the_pod_being_admitted_is_the_only_one_shown_without_devices,
    admission::an_error_of_allocate_fails_the_pod_and_frees_its_ids,
    admission::an_error_of_start_is_tried_again_without_another_allocate,
    admission::a_pod_that_asks_for_more_than_is_free_fails_at_admission,
    admission::the_devices_of_a_deleted_pod_are_free,
    reuse::an_init_containers_ids_are_handed_on_without_asking_for_a_preference,
    reuse::a_container_that_needs_more_must_take_the_init_containers_ids,
    reuse::containers_divide_the_ids_of_an_init_container,
    reuse::a_sidecars_ids_are_its_own,
    reuse::only_sidecars_among_init_containers_are_listed,
    reuse::the_checkpoint_names_what_every_container_holds,
    restarts::a_restarted_kubelet_keeps_running_pods_and_allocates_nothing_again,
    restarts::pods_bound_meanwhile_are_admitted_in_the_order_of_creation,
    restarts::devices_of_removed_pods_count_until_all_pods_are_admitted,
    restarts::without_its_plugin_a_restarted_kubelet_offers_nothing_and_running_pods_stay,
];
