//! A stand-in for `libnvidia-ml.so.1`: the part of NVML's C interface that `nvml-wrapper` calls for
//! GPUs, their readings and health events, answered from a script file (see [`script`]). By the name `libcuda.so.1` it
//! is one for [`cuda`].
//!
//! It is for machines without a GPU. Tests, the demo and the test cluster load it in place of the real
//! library, so that the code under test is the real one.
//!
//! Safety, for every exported function: a pointer is null (answered with "invalid argument") or valid for
//! a write of its type, as NVML's own header asks. Handles are numbers here and are never dereferenced.

pub mod cuda;
pub mod machine;
pub mod processes;
pub mod script;

use std::ffi::{CStr, c_char, c_int, c_longlong, c_uint, c_ulong, c_ulonglong, c_void};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use machine::{Machine, Return};
use script::{Gpu, ScriptFile};

/// Time between two reads of the script while an event set is waited on.
const EVENT_POLL: Duration = Duration::from_millis(20);
/// The bit of critical XIDs in event types (`nvmlEventTypeXidCriticalError`).
const EVENT_XID_CRITICAL: c_ulonglong = 0x8;
/// The number of the field with the recovery action (`NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`).
const FIELD_RECOVERY_ACTION: c_uint = 230;
/// The type of a field's value: an unsigned int (`NVML_VALUE_TYPE_UNSIGNED_INT`).
const VALUE_UNSIGNED_INT: c_uint = 1;
const MIB: u64 = 1024 * 1024;

/// An opaque NVML handle.
pub type Handle = *mut c_void;

/// Memory of a GPU, in bytes (`nvmlMemory_v2_t`).
#[repr(C)]
pub struct MemoryV2 {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// What a control group may use of a GPU (`nvmlGetMemoryLimits_v1_t`).
#[repr(C)]
pub struct GetMemoryLimits {
    name_space: *const c_char,
    soft_limit: c_ulonglong,
    hard_limit: c_ulonglong,
    current_used: c_ulonglong,
}

/// Percent of the last sample period in use (`nvmlUtilization_t`).
#[repr(C)]
pub struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

/// One event of an event set (`nvmlEventData_t`).
#[repr(C)]
pub struct EventData {
    device: Handle,
    event_type: c_ulonglong,
    event_data: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// One field: what is asked for, and the answer (`nvmlFieldValue_t`).
#[repr(C)]
pub struct FieldValue {
    field: c_uint,
    scope: c_uint,
    timestamp: c_longlong,
    latency: c_longlong,
    value_type: c_uint,
    result: Return,
    value: Value,
}

/// `nvmlValue_t`: a union of numbers of up to eight bytes.
#[repr(C)]
union Value {
    unsigned: c_uint,
    _size: c_ulonglong,
}

fn with<T>(act: impl FnOnce(&mut Machine) -> Result<T, Return>) -> Result<T, Return> {
    static MACHINE: OnceLock<Mutex<Machine>> = OnceLock::new();
    let machine =
        MACHINE.get_or_init(|| Mutex::new(Machine::new(ScriptFile::new(script::default_path()))));
    act(&mut *machine.lock().map_err(|_| Return::Unknown)?)
}

/// Writes a result through the caller's pointer.
unsafe fn put<T>(to: *mut T, value: Result<T, Return>) -> Return {
    if to.is_null() {
        return Return::InvalidArgument;
    }
    match value {
        Ok(value) => {
            unsafe { to.write(value) };
            Return::Success
        }
        Err(code) => code,
    }
}

unsafe fn put_text(to: *mut c_char, length: c_uint, text: Result<String, Return>) -> Return {
    let text = match text {
        Ok(text) => text,
        Err(code) => return code,
    };
    if to.is_null() {
        return Return::InvalidArgument;
    }
    if text.len() >= length as usize {
        return Return::InsufficientSize;
    }
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast::<c_char>(), to, text.len());
        to.add(text.len()).write(0);
    }
    Return::Success
}

fn code(result: Result<(), Return>) -> Return {
    result.err().unwrap_or(Return::Success)
}

fn identity<T>(device: Handle, pick: impl FnOnce(u32, Gpu) -> Option<T>) -> Result<T, Return> {
    let (index, gpu) = with(|machine| machine.identity(device as usize))?;
    pick(index, gpu).ok_or(Return::NotSupported)
}

fn reading<T>(device: Handle, pick: impl FnOnce(Gpu) -> Option<T>) -> Result<T, Return> {
    pick(with(|machine| machine.reading(device as usize))?).ok_or(Return::NotSupported)
}

/// Starts the library: without a readable script there is no driver.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> Return {
    code(with(|machine| machine.script().map(drop)))
}

/// As [`nvmlInit_v2`]; the flags change nothing here.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> Return {
    nvmlInit_v2()
}

/// Does nothing: the library holds nothing to release.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> Return {
    Return::Success
}

/// The script's driver version.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(
    version: *mut c_char,
    length: c_uint,
) -> Return {
    let driver = with(|machine| machine.script()?.driver.clone().ok_or(Return::NotSupported));
    unsafe { put_text(version, length, driver) }
}

/// How many GPUs the script has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> Return {
    unsafe { put(count, with(|machine| Ok(machine.script()?.gpus.len() as c_uint))) }
}

/// A GPU by its enumeration index.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(
    index: c_uint,
    device: *mut Handle,
) -> Return {
    unsafe { put(device, with(|machine| machine.by_index(index)).map(|at| at as Handle)) }
}

/// A GPU by its UUID.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(
    uuid: *const c_char,
    device: *mut Handle,
) -> Return {
    if uuid.is_null() {
        return Return::InvalidArgument;
    }
    let Ok(uuid) = unsafe { CStr::from_ptr(uuid) }.to_str() else { return Return::InvalidArgument };
    unsafe { put(device, with(|machine| machine.by_uuid(uuid)).map(|at| at as Handle)) }
}

/// The GPU's UUID, `GPU-…`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUUID(
    device: Handle,
    uuid: *mut c_char,
    length: c_uint,
) -> Return {
    unsafe { put_text(uuid, length, identity(device, |_, gpu| Some(gpu.uuid))) }
}

/// The GPU's product name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(
    device: Handle,
    name: *mut c_char,
    length: c_uint,
) -> Return {
    unsafe { put_text(name, length, identity(device, |_, gpu| gpu.model)) }
}

/// The GPU's enumeration index.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetIndex(device: Handle, index: *mut c_uint) -> Return {
    unsafe { put(index, identity(device, |index, _| Some(index))) }
}

/// N of the GPU's `/dev/nvidiaN`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMinorNumber(device: Handle, minor: *mut c_uint) -> Return {
    unsafe { put(minor, identity(device, |_, gpu| gpu.minor)) }
}

/// The GPU's place on the PCI bus.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPciInfo_v3(device: Handle, pci: *mut PciInfo) -> Return {
    let place = |_, gpu: Gpu| {
        let bus = gpu.pci_bus?;
        Some(PciInfo { bus, ..PciInfo::default() })
    };
    unsafe { put(pci, identity(device, place)) }
}

/// As `nvmlPciInfo_t`; the numbers alone are filled in.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct PciInfo {
    legacy_id: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    device_id: c_uint,
    subsystem_id: c_uint,
    id: [c_char; 32],
}

/// A bit mask of the NUMA nodes near the GPU; only its first word can be set here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryAffinity(
    device: Handle,
    words: c_uint,
    mask: *mut c_ulong,
    _scope: c_uint,
) -> Return {
    if words == 0 {
        return Return::InsufficientSize;
    }
    let bit =
        identity(device, |_, gpu| gpu.numa_node.and_then(|node| (1 as c_ulong).checked_shl(node)));
    unsafe { put(mask, bit) }
}

/// Whether two GPUs reach each other by NVLink; the script has no other way (`NVML_P2P_CAPS_INDEX_NVLINK`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetP2PStatus(
    one: Handle,
    other: Handle,
    way: c_uint,
    status: *mut c_uint,
) -> Return {
    const NVLINK: c_uint = 2;
    const NOT_SUPPORTED: c_uint = 5;
    let linked = identity(other, |index, _| Some(index)).and_then(|other| {
        identity(one, |_, gpu| Some(way == NVLINK && gpu.linked.contains(&other)))
    });
    unsafe { put(status, linked.map(|linked| if linked { 0 } else { NOT_SUPPORTED })) }
}

/// The GPU's CUDA compute capability; the script has its major number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCudaComputeCapability(
    device: Handle,
    major: *mut c_int,
    minor: *mut c_int,
) -> Return {
    let known = identity(device, |_, gpu| gpu.cuda_major);
    let zero = known.map(|_| 0);
    unsafe {
        put(minor, zero);
        put(major, known)
    }
}

/// Memory, total and used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(
    device: Handle,
    memory: *mut MemoryV2,
) -> Return {
    let info = reading(device, |gpu| {
        let total = gpu.memory_mib?;
        let used = gpu.used_mib;
        let version = size_of::<MemoryV2>() as c_uint | 2 << 24;
        let reserved = gpu.reserved_mib;
        let free = total.saturating_sub(used + reserved) * MIB;
        let [total, reserved, used] = [total, reserved, used].map(|mib| mib * MIB);
        Some(MemoryV2 { version, total, reserved, free, used })
    });
    unsafe { put(memory, info) }
}

/// What a control group may use of the GPU. Without the kernel's `dmem`, as here, the driver answers that it does not
/// support the question where no limit is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryLimits_v1(
    device: Handle,
    limits: *mut GetMemoryLimits,
) -> Return {
    if limits.is_null() || unsafe { (*limits).name_space.is_null() } {
        return Return::InvalidArgument;
    }
    let group = unsafe { CStr::from_ptr((*limits).name_space) };
    let gpu = match reading(device, Some) {
        Ok(gpu) => gpu,
        Err(code) => return code,
    };
    let Some(all) = gpu.limits_mib else { return Return::FunctionNotFound };
    let limit = group.to_str().ok().and_then(|group| all.get(group));
    let Some(limit) = limit else { return Return::NotSupported };
    unsafe { (*limits).hard_limit = limit * MIB };
    Return::Success
}

/// How busy the GPU is; the script has one figure for kernels and none for the memory bus.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUtilizationRates(
    device: Handle,
    rates: *mut Utilization,
) -> Return {
    unsafe {
        put(rates, reading(device, |gpu| Some(Utilization { gpu: gpu.utilisation?, memory: 0 })))
    }
}

/// The GPU's temperature; there is one sensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTemperature(
    device: Handle,
    _sensor: c_int,
    celsius: *mut c_uint,
) -> Return {
    unsafe { put(celsius, reading(device, |gpu| gpu.temperature)) }
}

/// The GPU's power draw in milliwatt.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPowerUsage(device: Handle, milliwatt: *mut c_uint) -> Return {
    unsafe { put(milliwatt, reading(device, |gpu| gpu.power_milliwatt)) }
}

/// Whether MIG mode is on. There is no change that waits for a reset.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigMode(
    device: Handle,
    current: *mut c_uint,
    pending: *mut c_uint,
) -> Return {
    let mode = reading(device, |gpu| gpu.mig.map(c_uint::from));
    unsafe {
        match put(current, mode) {
            Return::Success => put(pending, mode),
            refused => refused,
        }
    }
}

/// How many processes may use the GPU for computing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeMode(device: Handle, mode: *mut c_uint) -> Return {
    unsafe { put(mode, reading(device, |gpu| gpu.compute_mode)) }
}

/// Values of fields by number; the recovery action is the only one here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetFieldValues(
    device: Handle,
    count: c_int,
    values: *mut FieldValue,
) -> Return {
    let Ok(count) = usize::try_from(count) else { return Return::InvalidArgument };
    if values.is_null() || count == 0 {
        return Return::InvalidArgument;
    }
    let gpu = match reading(device, Some) {
        Ok(gpu) => gpu,
        Err(code) => return code,
    };
    for value in unsafe { std::slice::from_raw_parts_mut(values, count) } {
        let known = if value.field == FIELD_RECOVERY_ACTION { gpu.recovery } else { None };
        (value.timestamp, value.latency, value.value_type) = (0, 0, VALUE_UNSIGNED_INT);
        value.result = known.map_or(Return::NotSupported, |_| Return::Success);
        value.value = Value { unsigned: known.unwrap_or_default() };
    }
    Return::Success
}

/// Critical XIDs are the only kind of event here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetSupportedEventTypes(
    device: Handle,
    types: *mut c_ulonglong,
) -> Return {
    unsafe { put(types, identity(device, |_, _| Some(EVENT_XID_CRITICAL))) }
}

/// A new event set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetCreate(set: *mut Handle) -> Return {
    unsafe { put(set, with(|machine| Ok(machine.create_set() as Handle))) }
}

/// Adds a GPU to an event set.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceRegisterEvents(
    device: Handle,
    types: c_ulonglong,
    set: Handle,
) -> Return {
    if types & !EVENT_XID_CRITICAL != 0 {
        return Return::NotSupported;
    }
    code(with(|machine| machine.register(device as usize, set as usize)))
}

/// Waits for an event; the script is read every 20 ms.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetWait_v2(
    set: Handle,
    data: *mut EventData,
    timeout_ms: c_uint,
) -> Return {
    let deadline = Instant::now() + Duration::from_millis(timeout_ms.into());
    loop {
        match with(|machine| machine.poll(set as usize)) {
            Ok(Some(event)) => return unsafe { put(data, Ok(event_data(event))) },
            Err(code) => return code,
            Ok(None) => {}
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Return::Timeout;
        }
        std::thread::sleep(left.min(EVENT_POLL));
    }
}

fn event_data(event: machine::Event) -> EventData {
    EventData {
        device: event.device as Handle,
        event_type: EVENT_XID_CRITICAL,
        event_data: event.xid,
        gpu_instance: c_uint::MAX,
        compute_instance: c_uint::MAX,
    }
}

/// Releases an event set.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetFree(set: Handle) -> Return {
    code(with(|machine| machine.free_set(set as usize)))
}
