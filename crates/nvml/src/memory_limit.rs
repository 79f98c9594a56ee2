//! What the driver lets the processes of a control group use of a GPU: `nvmlDeviceGetMemoryLimits_v1`, of driver 615
//! and newer. `nvml-wrapper` does not have it, so it is looked up by its name.
//!
//! Invariant: a driver without the function says nothing about a limit; that is no error.

use std::ffi::{CString, c_char, c_uint, c_ulonglong, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

/// What the driver lets the processes of a control group use of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryLimit {
    /// At most these bytes.
    Bytes(u64),
    /// All of it: the group has no limit, and none above it has.
    Unlimited,
    /// The driver does not tell: it has no such function, or does not find the group.
    Unknown,
}

/// `nvmlGetMemoryLimits_v1_t` of NVIDIA's `nvml.h` (CUDA 13.4), by
/// <https://docs.nvidia.com/deploy/nvml-api/api/structnvmlGetMemoryLimits__v1__t.html>.
#[repr(C)]
struct GetMemoryLimits {
    /// In: the path of the group's folder.
    name_space: *const c_char,
    soft_limit: c_ulonglong,
    /// Out: bytes; [`u64::MAX`] is no limit.
    hard_limit: c_ulonglong,
    current_used: c_ulonglong,
}

type Get = unsafe extern "C" fn(*mut c_void, *mut GetMemoryLimits) -> c_uint;

const FUNCTION: &[u8] = b"nvmlDeviceGetMemoryLimits_v1\0";

/// `nvmlReturn_t`.
const SUCCESS: c_uint = 0;
/// No limit is set for the group or one above it: `memacctGetLimits` of NVIDIA's open-gpu-kernel-modules 615, in
/// `src/nvidia/src/kernel/mem_mgr/memacct.c`.
const NOT_SUPPORTED: c_uint = 3;
const GPU_IS_LOST: c_uint = 15;
const RESET_REQUIRED: c_uint = 16;

/// The limit of the group whose folder is `group`.
///
/// # Errors
/// If the GPU does not answer.
#[expect(unsafe_code, reason = "a C function by its name")]
pub(crate) fn memory_limit(device: &Device<'_>, group: &Path) -> Result<MemoryLimit, NvmlError> {
    // No path of a control group has a NUL.
    let Ok(group) = CString::new(group.as_os_str().as_bytes()) else {
        return Ok(MemoryLimit::Unknown);
    };
    let mut limits = GetMemoryLimits {
        name_space: group.as_ptr(),
        soft_limit: 0,
        hard_limit: 0,
        current_used: 0,
    };
    // SAFETY: the function has this type by NVIDIA's header. The library stays loaded while `device` borrows it, and
    // the text and the struct live until the call returns.
    let code = unsafe {
        let Ok(get) = device.nvml().lib().__library.get::<Get>(FUNCTION) else {
            return Ok(MemoryLimit::Unknown);
        };
        get(device.handle().cast(), &raw mut limits)
    };
    match code {
        SUCCESS if limits.hard_limit == u64::MAX => Ok(MemoryLimit::Unlimited),
        SUCCESS => Ok(MemoryLimit::Bytes(limits.hard_limit)),
        NOT_SUPPORTED => Ok(MemoryLimit::Unlimited),
        GPU_IS_LOST => Err(NvmlError::GpuLost),
        RESET_REQUIRED => Err(NvmlError::ResetRequired),
        _ => Ok(MemoryLimit::Unknown),
    }
}
