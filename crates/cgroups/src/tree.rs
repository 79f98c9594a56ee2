//! Reading a mounted hierarchy of control groups: names of folders, and files.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// The largest number of entries of one folder that are read, its files included. A pod's folder is one entry.
const MAX_ENTRIES: usize = 8_192;

/// Why a list of control groups may be incomplete.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the control groups in {path} cannot all be listed: {reason}", path = .path.display())]
pub struct Unread {
    path: PathBuf,
    reason: String,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The folder is not there.
    Gone,
    /// It has more than [`MAX_ENTRIES`] entries.
    TooMany,
    /// It is another user's.
    Denied,
    Failed,
}

impl Unread {
    pub(crate) fn failed(path: &Path, error: &io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::NotFound => Kind::Gone,
            io::ErrorKind::PermissionDenied => Kind::Denied,
            _ => Kind::Failed,
        };
        Self { path: path.to_owned(), reason: error.to_string(), kind }
    }

    fn too_many(path: &Path) -> Self {
        let reason = format!("more than {MAX_ENTRIES} entries");
        Self { path: path.to_owned(), reason, kind: Kind::TooMany }
    }

    /// Whether the kubelet's folder may be in this folder. A folder that is gone had none: the kernel removes no
    /// control group that has others in it. Only the hierarchy's root vanishes with all below it, when it is unmounted.
    /// The bound on entries is one of the search.
    pub(crate) fn hides_kubepods(&self, is_root: bool) -> bool {
        matches!(self.kind, Kind::Failed | Kind::Denied) || is_root
    }

    /// Whether this user may not read the folder. The kubelet's folder is readable by all users.
    pub(crate) fn is_denied(&self) -> bool {
        self.kind == Kind::Denied
    }
}

/// A hierarchy of control groups. Paths are from its root.
pub(crate) trait Tree {
    /// The names of the folders in the folder at `path`, and why there may be more. Links, and names that are not
    /// UTF-8, are left out.
    fn folders(&self, path: &Path) -> (Vec<String>, Option<Unread>);

    /// The content of the file at `path`.
    fn read(&self, path: &Path) -> io::Result<String>;
}

/// A hierarchy that is mounted there.
pub(crate) struct Mounted<'a>(pub(crate) &'a Path);

impl Tree for Mounted<'_> {
    fn folders(&self, path: &Path) -> (Vec<String>, Option<Unread>) {
        let path = self.0.join(path);
        let mut entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) => return (Vec::new(), Some(Unread::failed(&path, &error))),
        };
        let mut names = Vec::new();
        let mut first = None;
        for entry in entries.by_ref().take(MAX_ENTRIES) {
            match entry.and_then(|entry| folder(&entry)) {
                Ok(name) => names.extend(name),
                Err(error) => first = first.or_else(|| Some(Unread::failed(&path, &error))),
            }
        }
        (names, first.or_else(|| entries.next().is_some().then(|| Unread::too_many(&path))))
    }

    fn read(&self, path: &Path) -> io::Result<String> {
        fs::read_to_string(self.0.join(path))
    }
}

/// The name of a folder; `None` for another kind of entry, and for a folder that was removed meanwhile.
fn folder(entry: &fs::DirEntry) -> io::Result<Option<String>> {
    let is_folder = match entry.file_type() {
        Ok(kind) => kind.is_dir(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(error),
    };
    if !is_folder {
        return Ok(None);
    }
    Ok(entry.file_name().into_string().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_with_more_entries_than_are_looked_at_is_not_read_in_whole() {
        let root = tempfile::tempdir().unwrap();
        let fill = |to: usize| {
            (0..to).for_each(|at| fs::write(root.path().join(at.to_string()), "").unwrap());
            Mounted(root.path()).folders(Path::new("")).1
        };
        assert_eq!(fill(MAX_ENTRIES), None);
        let unread = fill(MAX_ENTRIES + 1).unwrap().to_string();
        assert!(unread.ends_with("cannot all be listed: more than 8192 entries"), "{unread}");
    }

    #[test]
    fn folders_alone_are_listed_and_a_file_in_place_of_one_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("folder")).unwrap();
        fs::write(root.path().join("file"), "").unwrap();
        std::os::unix::fs::symlink("folder", root.path().join("link")).unwrap();
        let listed = |path: &str| Mounted(root.path()).folders(Path::new(path));
        assert_eq!(listed(""), (vec!["folder".to_owned()], None));
        for other in ["file", "absent"] {
            assert!(listed(other).1.is_some(), "{other}");
        }
    }
}
