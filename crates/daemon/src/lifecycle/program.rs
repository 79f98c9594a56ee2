//! A program's name, version and commit, as `/version` and `plimsoll_build_info` show them.

/// A program's name, version and commit. Make it with [`program!`](crate::program).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program {
    /// The package's, binary's and image's name.
    pub name: &'static str,
    /// The package's version.
    pub version: &'static str,
    /// The commit it was built from, when the build named one.
    pub git: Option<&'static str>,
}

/// The [`Program`] of the crate that calls it. The commit is the build's `PLIMSOLL_GIT` variable.
#[macro_export]
macro_rules! program {
    () => {
        $crate::Program {
            name: env!("CARGO_PKG_NAME"),
            version: env!("CARGO_PKG_VERSION"),
            git: option_env!("PLIMSOLL_GIT"),
        }
    };
}
