//! A real Kubernetes on one Linux machine, and the tests that ask the processes what they see.
