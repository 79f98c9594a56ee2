//! Kubernetes glue: object to fact, decision to patch, bind and watch.
