//! [`try_context`] over the stand-in library. `CUDA_VISIBLE_DEVICES` is left as it is: the script has one card.

use std::path::Path;

use nvml::cuda::{ContextError, try_context};

use super::Node;

/// What comes of a context on a card of which the script says this.
fn context(cuda: &str) -> Result<(), ContextError> {
    let node = Node::new(&format!(r#"{{"cards":[{{"uuid":"GPU-a"{cuda}}}]}}"#));
    try_context(&node.library())
}

#[test]
fn a_card_that_works_passes() {
    assert_eq!(context(""), Ok(()));
}

#[test]
fn a_call_that_is_refused_is_a_fault_with_its_name_and_what_to_do() {
    for (call, code, name, remedy) in [
        ("cuInit", 802, "CUDA_ERROR_SYSTEM_NOT_READY", "nvidia-fabricmanager"),
        ("cuInit", 100, "CUDA_ERROR_NO_DEVICE", "/dev/nvidia-uvm"),
        ("cuCtxCreate", 805, "CUDA_ERROR_MPS_CONNECTION_FAILED", "control daemon"),
        ("cuMemcpyHtoD", 46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "no more clients"),
        ("cuCtxDestroy", 12345, "unknown", ""),
    ] {
        let error = context(&format!(r#","cuda":{{"call":"{call}","code":{code}}}"#)).unwrap_err();
        assert!(error.is_fault(), "{error}");
        let text = error.to_string();
        assert!(text.starts_with(&format!("{call}: CUDA error {code} ({name})")), "{text}");
        assert!(text.contains(remedy), "{text}");
    }
}

#[test]
fn memory_that_holds_other_bytes_is_a_fault() {
    let error = context(r#","cuda":{"call":"cuMemcpyDtoH"}"#).unwrap_err();
    assert_eq!(error, ContextError::Corrupt);
    assert!(error.is_fault());
}

#[test]
fn no_memory_no_library_and_one_of_another_driver_are_no_fault_of_the_card() {
    let full = context(r#","cuda":{"call":"cuMemAlloc","code":2}"#).unwrap_err();
    assert_eq!(full, ContextError::OutOfMemory { call: "cuMemAlloc" });
    let other = context(r#","cuda":{"call":"cuInit","code":803}"#).unwrap_err();
    assert_eq!(other, ContextError::DriverMismatch);
    let node = Node::new("{}");
    let text = node.dir.path().join("text");
    std::fs::write(&text, "no library").unwrap();
    let unusable = [Path::new("libcuda-of-no-one.so.1"), &text, Path::new("libc.so.6")];
    for library in unusable {
        let error = try_context(library).unwrap_err();
        assert!(matches!(error, ContextError::NoLibrary { .. }), "{error}");
        assert!(!error.is_fault() && error.to_string().contains("compute"), "{error}");
    }
    assert!(!full.is_fault() && !other.is_fault());
}
