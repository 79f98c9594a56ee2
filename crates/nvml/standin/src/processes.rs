//! The processes on a GPU: NVML's lists of them, and its samples of how busy each is.
//!
//! Safety: as in the crate's root. A buffer has room for as many elements as its count says; it may be null where that
//! is 0.

use std::ffi::{c_uint, c_ulonglong};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::machine::Return;
use crate::script::Process;
use crate::{Handle, reading};

/// Memory that NVML cannot tell (`NVML_VALUE_NOT_AVAILABLE`).
const NOT_AVAILABLE: c_ulonglong = c_ulonglong::MAX;

/// A process of a list (`nvmlProcessInfo_t`).
#[repr(C)]
pub struct ProcessInfo {
    pid: c_uint,
    used: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// How busy a process was (`nvmlProcessUtilizationSample_t`).
#[repr(C)]
pub struct ProcessSample {
    pid: c_uint,
    timestamp: c_ulonglong,
    sm: c_uint,
    memory: c_uint,
    encoder: c_uint,
    decoder: c_uint,
}

/// Writes all values, or their number where the caller's buffer is too small.
unsafe fn put_all<T>(values: Vec<T>, count: *mut c_uint, to: *mut T) -> Return {
    if count.is_null() {
        return Return::InvalidArgument;
    }
    let room = unsafe { count.read() } as usize;
    unsafe { count.write(values.len() as c_uint) };
    if values.len() > room {
        return Return::InsufficientSize;
    }
    if to.is_null() && !values.is_empty() {
        return Return::InvalidArgument;
    }
    for (at, value) in values.into_iter().enumerate() {
        unsafe { to.add(at).write(value) };
    }
    Return::Success
}

/// Writes the processes of which this holds.
unsafe fn list(
    device: Handle,
    holds: impl Fn(&Process) -> bool,
    count: *mut c_uint,
    to: *mut ProcessInfo,
) -> Return {
    match reading(device, |gpu| gpu.processes) {
        Ok(all) => {
            let listed = all.into_iter().filter(holds);
            unsafe {
                put_all(
                    listed
                        .map(|process| ProcessInfo {
                            pid: process.pid,
                            used: process.used_bytes.unwrap_or(NOT_AVAILABLE),
                            gpu_instance: c_uint::MAX,
                            compute_instance: c_uint::MAX,
                        })
                        .collect(),
                    count,
                    to,
                )
            }
        }
        Err(code) => code,
    }
}

/// The GPU's compute processes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: Handle,
    count: *mut c_uint,
    to: *mut ProcessInfo,
) -> Return {
    unsafe { list(device, |process| !process.graphics && process.mps != Some(true), count, to) }
}

/// The GPU's graphics processes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    device: Handle,
    count: *mut c_uint,
    to: *mut ProcessInfo,
) -> Return {
    unsafe { list(device, |process| process.graphics, count, to) }
}

/// The GPU's clients of MPS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
    device: Handle,
    count: *mut c_uint,
    to: *mut ProcessInfo,
) -> Return {
    match reading(device, |gpu| Some(gpu.processes?.iter().any(|process| process.mps.is_some()))) {
        Ok(true) => unsafe { list(device, |process| process.mps == Some(true), count, to) },
        Ok(false) => Return::NotSupported,
        Err(code) => code,
    }
}

/// How busy each process was that was busy at all; "not found" where none was.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetProcessUtilization(
    device: Handle,
    to: *mut ProcessSample,
    count: *mut c_uint,
    since: c_ulonglong,
) -> Return {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    let timestamp = c_ulonglong::try_from(now).unwrap_or(c_ulonglong::MAX);
    let sampled = reading(device, |gpu| {
        let all: Vec<(c_uint, c_uint)> =
            gpu.processes?.iter().filter_map(|process| Some((process.pid, process.sm?))).collect();
        (!all.is_empty()).then_some(all)
    });
    let busy: Vec<ProcessSample> = match sampled {
        Ok(all) => all
            .into_iter()
            .filter(|(_, sm)| *sm > 0 && timestamp > since)
            .map(|(pid, sm)| ProcessSample {
                pid,
                timestamp,
                sm,
                memory: 0,
                encoder: 0,
                decoder: 0,
            })
            .collect(),
        Err(code) => return code,
    };
    if busy.is_empty() { Return::NotFound } else { unsafe { put_all(busy, count, to) } }
}
