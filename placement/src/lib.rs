//! Facts and requests in, decisions and reasons out: every rule, key and unit, without I/O.
