//! A stand-in libnvidia-ml.so.1 that answers from a small script file.
