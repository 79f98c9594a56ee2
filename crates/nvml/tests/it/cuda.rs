//! [`try_context`] over the stand-in library. `CUDA_VISIBLE_DEVICES` is left as it is: the script has one GPU.

use std::path::Path;

use nvml::cuda::{ContextError, try_context};

use super::Node;

/// What comes of a context on a GPU of which the script says this.
fn context(cuda: &str) -> Result<(), ContextError> {
    let node = Node::new(&format!(r#"{{"cards":[{{"uuid":"GPU-a"{cuda}}}]}}"#));
    try_context(&node.library())
}

#[test]
fn a_gpu_that_works_passes() {
    assert_eq!(context(""), Ok(()));
}

#[test]
fn a_call_that_is_refused_is_a_fault_with_its_name_and_what_to_do() {
    for (call, code, name, remedy) in [
        ("cuInit", 802, "CUDA_ERROR_SYSTEM_NOT_READY", "nvidia-fabricmanager"),
        ("cuInit", 100, "CUDA_ERROR_NO_DEVICE", "/dev/nvidia-uvm"),
        ("cuCtxCreate", 805, "CUDA_ERROR_MPS_CONNECTION_FAILED", "control daemon"),
        ("cuMemcpyHtoD", 46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "no more clients"),
        ("cuInit", 803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "another version"),
        ("cuCtxDestroy", 12345, "unknown", ""),
    ] {
        let error = context(&format!(r#","cuda":{{"call":"{call}","code":{code}}}"#)).unwrap_err();
        assert!(error.is_fault(false), "{error}");
        let text = error.to_string();
        assert!(text.starts_with(&format!("{call}: CUDA error {code} ({name})")), "{text}");
        assert!(text.contains(remedy), "{text}");
    }
}

#[test]
fn memory_that_holds_other_bytes_is_a_fault() {
    let error = context(r#","cuda":{"call":"cuMemcpyDtoH"}"#).unwrap_err();
    assert_eq!(error, ContextError::Corrupt);
    assert!(error.is_fault(true));
}

#[test]
fn no_memory_no_library_and_no_place_in_mps_are_no_fault_of_the_gpu() {
    let full = context(r#","cuda":{"call":"cuMemAlloc","code":2}"#).unwrap_err();
    assert_eq!(full, ContextError::OutOfMemory { call: "cuMemAlloc" });
    for (code, without_mps) in [(46, true), (808, false), (809, false)] {
        let script = format!(r#","cuda":{{"call":"cuCtxCreate","code":{code}}}"#);
        let error = context(&script).unwrap_err();
        assert_eq!((error.is_fault(true), error.is_fault(false)), (false, without_mps), "{error}");
    }
    let node = Node::new("{}");
    let text = node.dir.path().join("text");
    std::fs::write(&text, "no library").unwrap();
    let unusable = [Path::new("libcuda-of-no-one.so.1"), &text, Path::new("libc.so.6")];
    for library in unusable {
        let error = try_context(library).unwrap_err();
        assert!(matches!(error, ContextError::NoLibrary { .. }), "{error}");
        assert!(!error.is_fault(true) && error.to_string().contains("compute"), "{error}");
    }
    assert!(!full.is_fault(true));
}
