//! [`openb`] replays a trace of GPU pods. What else is in the laboratory has a `main` of its own: `examples/`, and the
//! closed loop in `closed-loop/`.

pub mod openb;
