//! A small Kubernetes API stand-in over real HTTP, for tests and the demo.
