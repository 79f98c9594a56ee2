//! Tests of GPU sharing: which GPU a pod's processes see, and which GPUs are given to which pods.

pub(crate) mod aliyun;
pub(crate) mod annotations;
pub(crate) mod bind_tls;
pub(crate) mod binding;
pub(crate) mod claims;
pub(crate) mod forced_deletion;
pub(crate) mod gangs;
pub(crate) mod gpu_evictions;
pub(crate) mod gpus;
pub(crate) mod isolation;
pub(crate) mod kubelet_restarts;
pub(crate) mod kueue;
pub(crate) mod moves;
pub(crate) mod plugin_rollouts;
pub(crate) mod preemption;
pub(crate) mod processes;
pub(crate) mod quota;
pub(crate) mod resource_claims;
pub(crate) mod running_pods;
pub(crate) mod units;
