//! CUDA's C interface, as far as a program needs it that opens a context and copies memory. The script's `cuda` says
//! what a GPU answers; memory is the host's.
//!
//! `CUDA_VISIBLE_DEVICES` with UUIDs, separated by commas, chooses the GPUs; without it all of the script are there.
//! Without a script, or a GPU of it, `cuInit` finds no device.
//!
//! Safety is as in the crate's own text. A device address is one that [`cuMemAlloc_v2`] gave out.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::{copy_nonoverlapping, null};
use std::sync::{Mutex, PoisonError};

use crate::script::{Cuda, Gpu};
use crate::with;

/// `CUresult`. The values are CUDA's own.
const SUCCESS: c_int = 0;
const INVALID_VALUE: c_int = 1;
const OUT_OF_MEMORY: c_int = 2;
const NO_DEVICE: c_int = 100;
const INVALID_DEVICE: c_int = 101;

/// The environment variable that chooses GPUs.
const VISIBLE_ENV: &str = "CUDA_VISIBLE_DEVICES";

/// The memory given out: its size by its address.
static MEMORY: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

/// An opaque context: the place of its GPU, from 1.
pub type Context = *mut c_void;

/// The GPUs that this process sees.
fn gpus() -> Vec<Gpu> {
    let all = with(|machine| Ok(machine.script()?.gpus.clone())).unwrap_or_default();
    let Ok(visible) = std::env::var(VISIBLE_ENV) else { return all };
    let named = visible.split(',').filter_map(|uuid| all.iter().find(|gpu| gpu.uuid == uuid));
    named.cloned().collect()
}

/// What the script says of `call`, by the first GPU that has it: one process has one context here. Hangs if it says
/// so.
fn scripted(call: &str) -> Option<Cuda> {
    let cuda = gpus().into_iter().filter_map(|gpu| gpu.cuda).find(|cuda| cuda.call == call)?;
    if cuda.hangs {
        loop {
            std::thread::park();
        }
    }
    Some(cuda)
}

/// The script's answer, else that of `act`.
fn or_else(call: &str, act: impl FnOnce() -> c_int) -> c_int {
    match scripted(call) {
        Some(cuda) if cuda.code != SUCCESS => cuda.code,
        _ => act(),
    }
}

unsafe fn put<T>(to: *mut T, value: T) -> c_int {
    if to.is_null() {
        return INVALID_VALUE;
    }
    unsafe { to.write(value) };
    SUCCESS
}

/// The memory at `at`, if it was given out and has `size` bytes.
fn memory(at: u64, size: usize) -> Option<*mut c_void> {
    let at = at as usize;
    let given = MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
    given.get(&at).is_some_and(|has| size <= *has).then_some(at as *mut c_void)
}

/// Finds the GPUs.
#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: c_uint) -> c_int {
    or_else("cuInit", || if gpus().is_empty() { NO_DEVICE } else { SUCCESS })
}

/// The number of GPUs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    unsafe { put(count, gpus().len() as c_int) }
}

/// A GPU by its place, from 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, place: c_int) -> c_int {
    or_else("cuDeviceGet", || {
        if !usize::try_from(place).is_ok_and(|place| place < gpus().len()) {
            return INVALID_DEVICE;
        }
        unsafe { put(device, place) }
    })
}

/// Opens a context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxCreate_v2(
    context: *mut Context,
    _flags: c_uint,
    device: c_int,
) -> c_int {
    or_else("cuCtxCreate", || unsafe { put(context, (device as usize + 1) as Context) })
}

/// Closes a context.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxDestroy_v2(context: Context) -> c_int {
    or_else("cuCtxDestroy", || if context.is_null() { INVALID_VALUE } else { SUCCESS })
}

/// Gives memory out, of the host.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, size: usize) -> c_int {
    or_else("cuMemAlloc", || {
        let layout = Layout::from_size_align(size, 256).ok().filter(|_| size > 0);
        let Some(layout) = layout else { return INVALID_VALUE };
        let memory = unsafe { alloc_zeroed(layout) };
        if memory.is_null() {
            return OUT_OF_MEMORY;
        }
        MEMORY.lock().unwrap_or_else(PoisonError::into_inner).insert(memory as usize, size);
        unsafe { put(address, memory as u64) }
    })
}

/// Takes memory back.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: u64) -> c_int {
    or_else("cuMemFree", || {
        let at = address as usize;
        let size = MEMORY.lock().unwrap_or_else(PoisonError::into_inner).remove(&at);
        let layout = size.and_then(|size| Layout::from_size_align(size, 256).ok());
        let Some(layout) = layout else { return INVALID_VALUE };
        unsafe { dealloc(at as *mut u8, layout) };
        SUCCESS
    })
}

/// Copies from the host.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, size: usize) -> c_int {
    or_else("cuMemcpyHtoD", || match memory(to, size) {
        Some(to) if !from.is_null() => {
            unsafe { copy_nonoverlapping(from.cast::<u8>(), to.cast(), size) };
            SUCCESS
        }
        _ => INVALID_VALUE,
    })
}

/// Copies to the host; copies nothing if the script says so.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, size: usize) -> c_int {
    let is_wrong = scripted("cuMemcpyDtoH").is_some();
    or_else("cuMemcpyDtoH", || match memory(from, size) {
        Some(_) if is_wrong => SUCCESS,
        Some(from) if !to.is_null() => {
            unsafe { copy_nonoverlapping(from.cast::<u8>(), to.cast(), size) };
            SUCCESS
        }
        _ => INVALID_VALUE,
    })
}

/// CUDA's name of an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(code: c_int, name: *mut *const c_char) -> c_int {
    let known = match code {
        SUCCESS => c"CUDA_SUCCESS",
        INVALID_VALUE => c"CUDA_ERROR_INVALID_VALUE",
        OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
        46 => c"CUDA_ERROR_DEVICE_UNAVAILABLE",
        NO_DEVICE => c"CUDA_ERROR_NO_DEVICE",
        INVALID_DEVICE => c"CUDA_ERROR_INVALID_DEVICE",
        802 => c"CUDA_ERROR_SYSTEM_NOT_READY",
        803 => c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        805 => c"CUDA_ERROR_MPS_CONNECTION_FAILED",
        _ => {
            let _ = unsafe { put(name, null()) };
            return INVALID_VALUE;
        }
    };
    unsafe { put(name, known.as_ptr()) }
}
