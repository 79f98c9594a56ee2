//! The few calls of CUDA's driver interface that the program makes, from a libcuda that is loaded at run time: it is
//! compiled without NVIDIA's toolkit, and its kernel is a text that the driver compiles.
//!
//! Safety: each function is called with the signature that NVIDIA's `cuda.h` gives it, with pointers to values that
//! live until it returns. The library stays loaded while [`Cuda`] lives, which every context borrows.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};

use anyhow::{Context as _, Result};
use libloading::Library;

/// The soname under which NVIDIA's driver installs CUDA.
const LIBRARY: &str = "libcuda.so.1";
/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`. Under MPS it is the client's part.
const MULTIPROCESSOR_COUNT: c_int = 16;
/// Words of the kernel's argument `seen`: more multiprocessors than any GPU has.
const SEEN: usize = 1024;
/// Blocks of a launch, and threads of a block: more than any GPU runs at once.
const BLOCKS: c_uint = 256 * 8;
const THREADS: c_uint = 256;
/// An address that no allocation has: below the first one.
const UNMAPPED: u64 = 0x10;

/// The kernel, ended by a zero byte.
const BURN: &str = concat!(include_str!("burn.ptx"), "\0");

type Handle = *mut c_void;
type Address = u64;

unsafe extern "C" {
    fn _exit(code: c_int) -> !;
}

/// Ends the process without the handlers of libcuda: those of a broken context may hang.
pub(crate) fn exit_at_once(code: c_int) -> ! {
    unsafe { _exit(code) }
}

/// A loaded and initialised libcuda.
pub(crate) struct Cuda {
    library: Library,
}

/// A context on the first GPU that this process sees.
pub(crate) struct Context<'cuda> {
    cuda: &'cuda Cuda,
    device: c_int,
    /// The number of GPUs that this process sees.
    pub(crate) devices: c_int,
}

/// The kernel with its arguments in memory of the GPU.
pub(crate) struct Burn<'context> {
    context: &'context Context<'context>,
    function: Handle,
    out: Address,
    seen: Address,
}

/// Calls a function of the library by its name in `cuda.h`, each argument with its type there.
macro_rules! call {
    ($cuda:expr, $name:literal $(, $value:expr => $kind:ty)*) => {{
        let name = concat!($name, "\0").as_bytes();
        let function = unsafe { $cuda.library.get::<unsafe extern "C" fn($($kind),*) -> c_int>(name) };
        let function = function.with_context(|| format!("{LIBRARY} has no {}", $name))?;
        let code = unsafe { function($($value),*) };
        $cuda.check($name, code)
    }};
}

impl Cuda {
    /// Loads the library and initialises it.
    pub(crate) fn load() -> Result<Self> {
        let library =
            unsafe { Library::new(LIBRARY) }.with_context(|| format!("cannot load {LIBRARY}"))?;
        let cuda = Self { library };
        call!(cuda, "cuInit", 0 => c_uint)?;
        Ok(cuda)
    }

    /// A context on the first GPU.
    pub(crate) fn context(&self) -> Result<Context<'_>> {
        let (mut devices, mut device, mut handle) = (0, 0, null_mut());
        call!(self, "cuDeviceGetCount", &mut devices => *mut c_int)?;
        call!(self, "cuDeviceGet", &mut device => *mut c_int, 0 => c_int)?;
        call!(self, "cuCtxCreate_v2", &mut handle => *mut Handle, 0 => c_uint, device => c_int)?;
        Ok(Context { cuda: self, device, devices })
    }

    fn check(&self, call: &str, code: c_int) -> Result<()> {
        anyhow::ensure!(code == 0, "{call}: {} ({code})", self.name(code));
        Ok(())
    }

    fn name(&self, code: c_int) -> String {
        type GetName = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;
        let mut name: *const c_char = null();
        let function = unsafe { self.library.get::<GetName>(b"cuGetErrorName\0") };
        let known = function.is_ok_and(|function| unsafe { function(code, &mut name) } == 0);
        if !known || name.is_null() {
            return "an error without a name".to_owned();
        }
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }
}

impl Context<'_> {
    /// The GPU's UUID as NVML writes it.
    pub(crate) fn uuid(&self) -> Result<String> {
        let mut bytes = [0_u8; 16];
        let to = bytes.as_mut_ptr();
        call!(self.cuda, "cuDeviceGetUuid", to => *mut u8, self.device => c_int)?;
        Ok(written(bytes))
    }

    /// The multiprocessors that this process may use.
    pub(crate) fn multiprocessors(&self) -> Result<c_int> {
        let (mut count, what) = (0, MULTIPROCESSOR_COUNT);
        call!(
            self.cuda, "cuDeviceGetAttribute",
            &mut count => *mut c_int, what => c_int, self.device => c_int
        )?;
        Ok(count)
    }

    /// The memory that the GPU has for this process, in bytes.
    pub(crate) fn total(&self) -> Result<usize> {
        let (mut free, mut total) = (0, 0);
        call!(self.cuda, "cuMemGetInfo_v2", &mut free => *mut usize, &mut total => *mut usize)?;
        Ok(total)
    }

    /// Allocates so many bytes of the GPU's memory.
    pub(crate) fn allocate(&self, bytes: u64) -> Result<Address> {
        let (mut address, bytes) = (0, usize::try_from(bytes)?);
        call!(self.cuda, "cuMemAlloc_v2", &mut address => *mut Address, bytes => usize)?;
        Ok(address)
    }

    /// Writes this value to all of it, so that it is in use.
    pub(crate) fn fill(&self, address: Address, bytes: u64, value: u8) -> Result<()> {
        let bytes = usize::try_from(bytes)?;
        call!(self.cuda, "cuMemsetD8_v2", address => Address, value => u8, bytes => usize)
    }

    /// Waits for the end of all kernels.
    pub(crate) fn wait(&self) -> Result<()> {
        call!(self.cuda, "cuCtxSynchronize")
    }

    /// Compiles the kernel.
    pub(crate) fn burn(&self) -> Result<Burn<'_>> {
        let (mut module, mut function, text) = (null_mut(), null_mut(), BURN.as_ptr().cast());
        call!(self.cuda, "cuModuleLoadData", &mut module => *mut Handle, text => *const c_void)?;
        let name = c"burn".as_ptr();
        call!(
            self.cuda, "cuModuleGetFunction",
            &mut function => *mut Handle, module => Handle, name => *const c_char
        )?;
        let bytes = (SEEN * size_of::<u32>()) as u64;
        let seen = self.allocate(bytes)?;
        self.fill(seen, bytes, 0)?;
        Ok(Burn { context: self, function, out: self.allocate(4)?, seen })
    }
}

impl Burn<'_> {
    /// Starts the kernel on the whole GPU, and does not wait for it.
    pub(crate) fn launch(&self, rounds: u32) -> Result<()> {
        self.launch_with(self.seen, rounds)
    }

    /// Starts it so that it faults.
    pub(crate) fn launch_with_unmapped_address(&self) -> Result<()> {
        self.launch_with(UNMAPPED, 1)
    }

    fn launch_with(&self, mut seen: Address, mut rounds: u32) -> Result<()> {
        let mut out = self.out;
        let mut arguments: [*mut c_void; 3] =
            [(&raw mut out).cast(), (&raw mut seen).cast(), (&raw mut rounds).cast()];
        // The grid, a block, no shared memory, the first stream.
        call!(
            self.context.cuda, "cuLaunchKernel", self.function => Handle,
            BLOCKS => c_uint, 1 => c_uint, 1 => c_uint, THREADS => c_uint, 1 => c_uint, 1 => c_uint,
            0 => c_uint, null_mut() => Handle, arguments.as_mut_ptr() => *mut *mut c_void,
            null_mut() => *mut *mut c_void
        )
    }

    /// On how many multiprocessors the kernel ran.
    pub(crate) fn multiprocessors_seen(&self) -> Result<usize> {
        let mut seen = vec![0_u32; SEEN];
        let (to, bytes) = (seen.as_mut_ptr().cast(), size_of_val(&seen[..]));
        call!(
            self.context.cuda, "cuMemcpyDtoH_v2",
            to => *mut c_void, self.seen => Address, bytes => usize
        )?;
        Ok(seen.iter().filter(|word| **word != 0).count())
    }
}

fn written(bytes: [u8; 16]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
    format!("GPU-{}", parts.join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_nvml_writes_it() {
        let bytes = std::array::from_fn(|at| at as u8);
        assert_eq!(written(bytes), "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
    }

    #[test]
    fn the_kernel_has_the_arguments_that_a_launch_gives_it() {
        let entry = BURN.lines().find(|line| line.contains(".entry")).unwrap();
        assert!(
            entry.contains("burn(.param .u64 out, .param .u64 seen, .param .u32 rounds)"),
            "{entry}"
        );
    }
}
