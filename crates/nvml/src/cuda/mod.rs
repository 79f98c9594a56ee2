//! Opens a CUDA context as a pod's program does, since NVML answers well for a GPU that CUDA cannot use; and the words
//! in which a process that does so is asked and answers.
//!
//! Invariant: only CUDA's own answer is a fault of the GPU. A library that is missing or does not load, a lack of
//! memory, and an MPS server that has as many clients as it takes say nothing about the GPU.

mod words;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};

use libloading::Library;

pub use words::{Answer, MAX_LINE, Question};

/// The soname under which NVIDIA's driver installs CUDA's library.
pub const DEFAULT_LIBRARY: &str = "libcuda.so.1";
/// The bytes that are copied to the GPU and back.
const BYTES: usize = 1 << 20;

/// `CUresult` of NVIDIA's `cuda.h`.
const SUCCESS: c_int = 0;
const OUT_OF_MEMORY: c_int = 2;
const NO_DEVICE: c_int = 100;
const UNAVAILABLE: i32 = 46;
const MPS_CLIENTS: i32 = 808;
const MPS_CONNECTIONS: i32 = 809;

/// An address on the GPU (`CUdeviceptr`).
type Address = u64;
/// An opaque context (`CUcontext`).
type Handle = *mut c_void;

/// Why no context could be opened or used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContextError {
    /// There is no CUDA library here, or it does not load.
    #[error(
        "{library:?} cannot be loaded: {reason}. NVIDIA's runtime mounts it where NVIDIA_DRIVER_CAPABILITIES has \
         `compute`"
    )]
    NoLibrary {
        /// The path or soname that was asked for.
        library: PathBuf,
        /// The loader's error.
        reason: String,
    },
    /// The GPU, or the machine, has no memory for a context.
    #[error("{call}: no memory for a context")]
    OutOfMemory {
        /// The function that was called.
        call: &'static str,
    },
    /// CUDA refuses a call.
    #[error("{call}: CUDA error {code} ({name}){}", remedy(*.code))]
    Refused {
        /// The function that was called.
        call: &'static str,
        /// CUDA's number of the error.
        code: i32,
        /// CUDA's name of it.
        name: String,
    },
    /// What is read back from the GPU's memory is not what was written there.
    #[error("the GPU's memory does not hold what is written to it")]
    Corrupt,
}

impl ContextError {
    /// Whether programs of pods fail for it too, where a context is opened by MPS or not. MPS gives one client too many
    /// numbers of its own, or that of a GPU which is not available.
    pub fn is_fault(&self, by_mps: bool) -> bool {
        match self {
            Self::NoLibrary { .. } | Self::OutOfMemory { .. } => false,
            Self::Refused { code: MPS_CLIENTS | MPS_CONNECTIONS, .. } => false,
            Self::Refused { code: UNAVAILABLE, .. } => !by_mps,
            Self::Refused { .. } | Self::Corrupt => true,
        }
    }
}

/// What to do about an error of that number, behind a colon; empty where that is not known.
fn remedy(code: i32) -> &'static str {
    match code {
        UNAVAILABLE => ": it is busy, in an exclusive compute mode, or MPS takes no more clients",
        NO_DEVICE => {
            ": CUDA finds no GPU. Look for /dev/nvidia-uvm and at the driver's log (dmesg) on the node"
        }
        802 => {
            ": the system is not ready. On machines with NVSwitch, start NVIDIA's fabric manager \
                (nvidia-fabricmanager)"
        }
        803 => {
            ": the driver's library is of another version than its module in the kernel. Load the module anew, or boot"
        }
        805..=807 | 810 => ": MPS does not answer. Start its control daemon anew",
        MPS_CLIENTS | MPS_CONNECTIONS => ": MPS takes no more clients",
        _ => "",
    }
}

/// Opens a context on the first GPU that CUDA shows, copies a mebibyte there and back, and closes it. Blocks for as
/// long as the driver does. `CUDA_VISIBLE_DEVICES` chooses the GPU; CUDA reads it once in a process.
///
/// # Errors
/// See [`ContextError`].
pub fn try_context(library: &Path) -> Result<(), ContextError> {
    Cuda::load(library)?.try_context()
}

/// CUDA's functions, with the types that `cuda.h` gives them.
struct Cuda {
    init: unsafe extern "C" fn(c_uint) -> c_int,
    device_count: unsafe extern "C" fn(*mut c_int) -> c_int,
    device: unsafe extern "C" fn(*mut c_int, c_int) -> c_int,
    create: unsafe extern "C" fn(*mut Handle, c_uint, c_int) -> c_int,
    destroy: unsafe extern "C" fn(Handle) -> c_int,
    allocate: unsafe extern "C" fn(*mut Address, usize) -> c_int,
    free: unsafe extern "C" fn(Address) -> c_int,
    write: unsafe extern "C" fn(Address, *const c_void, usize) -> c_int,
    read: unsafe extern "C" fn(*mut c_void, Address, usize) -> c_int,
    error_name: Option<unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int>,
}

#[expect(unsafe_code, reason = "C functions by their names")]
impl Cuda {
    fn load(library: &Path) -> Result<Self, ContextError> {
        let unusable = |error: libloading::Error| ContextError::NoLibrary {
            library: library.to_owned(),
            reason: error.to_string(),
        };
        // SAFETY: NVIDIA's library may be initialised in any thread.
        let opened = unsafe { Library::new(library) }.map_err(unusable)?;
        // Never unloaded: its threads may outlive a context.
        let opened: &'static Library = Box::leak(Box::new(opened));
        // SAFETY: the functions have these types by NVIDIA's header.
        unsafe {
            Ok(Self {
                init: *opened.get(b"cuInit\0").map_err(unusable)?,
                device_count: *opened.get(b"cuDeviceGetCount\0").map_err(unusable)?,
                device: *opened.get(b"cuDeviceGet\0").map_err(unusable)?,
                create: *opened.get(b"cuCtxCreate_v2\0").map_err(unusable)?,
                destroy: *opened.get(b"cuCtxDestroy_v2\0").map_err(unusable)?,
                allocate: *opened.get(b"cuMemAlloc_v2\0").map_err(unusable)?,
                free: *opened.get(b"cuMemFree_v2\0").map_err(unusable)?,
                write: *opened.get(b"cuMemcpyHtoD_v2\0").map_err(unusable)?,
                read: *opened.get(b"cuMemcpyDtoH_v2\0").map_err(unusable)?,
                error_name: opened.get(b"cuGetErrorName\0").ok().map(|name| *name),
            })
        }
    }

    fn try_context(&self) -> Result<(), ContextError> {
        let (mut count, mut device, mut context) = (0, 0, null_mut());
        // SAFETY: each pointer is valid for a write of its type.
        unsafe {
            self.check("cuInit", (self.init)(0))?;
            self.check("cuDeviceGetCount", (self.device_count)(&raw mut count))?;
            if count < 1 {
                self.check("cuDeviceGetCount", NO_DEVICE)?;
            }
            self.check("cuDeviceGet", (self.device)(&raw mut device, 0))?;
            self.check("cuCtxCreate", (self.create)(&raw mut context, 0, device))?;
        }
        let used = self.use_memory();
        // SAFETY: the context was made above, and is used no more.
        let destroyed = unsafe { (self.destroy)(context) };
        used.and(self.check("cuCtxDestroy", destroyed))
    }

    /// Writes memory of the GPU and reads it back, in the context of this thread.
    fn use_memory(&self) -> Result<(), ContextError> {
        let written: Vec<u8> = (0..=u8::MAX).cycle().take(BYTES).collect();
        let mut read = vec![0; BYTES];
        let mut at = 0;
        // SAFETY: both buffers, and the memory at `at`, have this many bytes.
        unsafe {
            self.check("cuMemAlloc", (self.allocate)(&raw mut at, BYTES))?;
            self.check("cuMemcpyHtoD", (self.write)(at, written.as_ptr().cast(), BYTES))?;
            self.check("cuMemcpyDtoH", (self.read)(read.as_mut_ptr().cast(), at, BYTES))?;
            self.check("cuMemFree", (self.free)(at))?;
        }
        if read == written { Ok(()) } else { Err(ContextError::Corrupt) }
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), ContextError> {
        match code {
            SUCCESS => Ok(()),
            OUT_OF_MEMORY => Err(ContextError::OutOfMemory { call }),
            _ => Err(ContextError::Refused { call, code, name: self.name(code) }),
        }
    }

    fn name(&self, code: c_int) -> String {
        let mut name = null();
        // SAFETY: CUDA sets the pointer to a text of its own, or to null.
        unsafe {
            let found = self.error_name.is_some_and(|of| of(code, &raw mut name) == SUCCESS);
            if found && !name.is_null() {
                return CStr::from_ptr(name).to_string_lossy().into_owned();
            }
        }
        "unknown".to_owned()
    }
}
