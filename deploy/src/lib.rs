//! Images, manifests and configuration, and the tests that prove them.
