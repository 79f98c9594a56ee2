//! The pipe to the container that can reach MPS's privileged socket, `drain` of the MPS daemon's pod: the UIDs of pods,
//! one a line. It terminates the clients whose control group is of that pod.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use placement::units::PodUid;
use rustix::fs::{Mode, OFlags};

/// The longest UID that is written. A line is shorter than `PIPE_BUF`, so that it is written whole or not at all.
const MAX_UID: usize = 64;

/// Where the pods are written whose clients are to be terminated.
#[derive(Debug, Clone)]
pub(crate) struct DrainPipe {
    path: PathBuf,
    /// The user that must own it: this plugin's own, root in the manifests.
    owner: u32,
}

/// Why the end of a pod's clients could not be asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DrainError {
    /// No reader.
    #[error(
        "nothing terminates MPS's clients: no process of root reads the pipe {} ({cause}). Run the MPS daemon's \
         container `drain` (value mps.enabled) on this node", .path.display()
    )]
    NotServed {
        /// The pipe.
        path: PathBuf,
        /// The operating system's error.
        cause: io::Error,
    },
    /// The reader is behind.
    #[error("the pipe {} takes no more pods: {cause}", .path.display())]
    Full {
        /// The pipe.
        path: PathBuf,
        /// The operating system's error.
        cause: io::Error,
    },
    /// No UID of Kubernetes.
    #[error("`{0}` is no UID of a pod")]
    NoUid(PodUid),
}

impl DrainPipe {
    /// The pipe below the folder of MPS, in a folder that only root may enter and no client sees.
    pub(crate) fn below(mps: &Path, owner: u32) -> Self {
        Self { path: mps.join("pipes/drain/pods"), owner }
    }

    /// Whether a process reads it. A pipe outlives its reader, but cannot be opened without one.
    pub(crate) fn is_served(&self) -> bool {
        self.open().is_ok()
    }

    /// Asks for the end of a pod's clients, and does not wait for it.
    ///
    /// # Errors
    /// If the pipe has no reader or is full.
    pub(crate) fn ask(&self, pod: &PodUid) -> Result<(), DrainError> {
        let uid = pod.as_str();
        let is_uid = uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if !is_uid || uid.is_empty() || uid.len() > MAX_UID {
            return Err(DrainError::NoUid(pod.clone()));
        }
        let path = self.path.clone();
        let mut pipe = match self.open() {
            Ok(pipe) => pipe,
            Err(cause) => return Err(DrainError::NotServed { path, cause }),
        };
        pipe.write_all(format!("{uid}\n").as_bytes())
            .map_err(|cause| DrainError::Full { path, cause })
    }

    fn open(&self) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let pipe = File::from(rustix::fs::open(&self.path, flags, Mode::empty())?);
        let metadata = pipe.metadata()?;
        if metadata.file_type().is_fifo() && metadata.uid() == self.owner {
            return Ok(pipe);
        }
        Err(io::Error::other("it is no pipe, or another user's"))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read as _;
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, FileType, mknodat};
    use rustix::process::geteuid;

    use super::*;

    struct Served {
        dir: tempfile::TempDir,
        pipe: DrainPipe,
    }

    fn served() -> Served {
        let dir = tempfile::tempdir().unwrap();
        let pipe = DrainPipe::below(dir.path(), geteuid().as_raw());
        fs::create_dir_all(pipe.path.parent().unwrap()).unwrap();
        mknodat(CWD, &pipe.path, FileType::Fifo, Mode::RWXU, 0).unwrap();
        Served { dir, pipe }
    }

    /// As the container's shell opens it.
    fn reader(pipe: &DrainPipe) -> File {
        File::options().read(true).write(true).open(&pipe.path).unwrap()
    }

    #[test]
    fn a_pod_is_one_line_and_without_a_reader_an_error() {
        let Served { dir: _dir, pipe } = served();
        let uid = PodUid::from("8b1f4a9e-0d4c-4a63-9d6e-2f6a1c0b7e55");
        let error = pipe.ask(&uid).unwrap_err();
        assert!(matches!(error, DrainError::NotServed { .. }) && !pipe.is_served(), "{error}");
        let mut reads = reader(&pipe);
        assert!(pipe.is_served());
        pipe.ask(&uid).unwrap();
        let mut line = [0; 64];
        let length = reads.read(&mut line).unwrap();
        assert_eq!(&line[..length], b"8b1f4a9e-0d4c-4a63-9d6e-2f6a1c0b7e55\n");
        drop(reads);
        assert!(!pipe.is_served(), "the reader has ended");
    }

    #[test]
    fn nothing_but_a_uid_is_written() {
        let Served { dir: _dir, pipe } = served();
        let _reads = reader(&pipe);
        for wrong in ["", "a\nb", "quit ", "../x", &"a".repeat(MAX_UID + 1)] {
            let refused = pipe.ask(&PodUid::from(wrong));
            assert!(matches!(refused, Err(DrainError::NoUid(_))), "{wrong:?}");
        }
    }

    #[test]
    fn a_full_pipe_is_an_error_and_blocks_nothing() {
        let Served { dir: _dir, pipe } = served();
        let _reads = reader(&pipe);
        let uid = PodUid::from("p");
        let refused = (0..1 << 20).find_map(|_| pipe.ask(&uid).err()).unwrap();
        assert!(matches!(refused, DrainError::Full { .. }), "{refused}");
    }

    #[test]
    fn what_is_no_pipe_of_the_own_user_is_not_written_to() {
        let Served { dir, pipe } = served();
        let _reads = reader(&pipe);
        let other = DrainPipe { owner: pipe.owner + 1, ..pipe.clone() };
        assert!(!other.is_served());
        let elsewhere = dir.path().join("elsewhere");
        fs::rename(&pipe.path, &elsewhere).unwrap();
        symlink(&elsewhere, &pipe.path).unwrap();
        assert!(!pipe.is_served(), "a link");
        fs::remove_file(&pipe.path).unwrap();
        fs::write(&pipe.path, "").unwrap();
        assert!(!pipe.is_served(), "a file");
    }
}
