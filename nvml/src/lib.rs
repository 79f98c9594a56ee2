//! GPU probing: the real NVML through nvml-wrapper, and a scripted one.
