//! HTTP kube-scheduler extender: load-aware filter and prioritize, GPU-share filter and bind.
