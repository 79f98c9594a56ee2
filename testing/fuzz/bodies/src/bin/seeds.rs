//! Writes every target's seeds into `FOLDER/TARGET/`, for libFuzzer. The folder is the only argument.

use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from);
    let folder = folder.ok_or_else(|| std::io::Error::other("give the folder to write into"))?;
    for target in bodies::TARGETS {
        bodies::seeds::write(target, &folder.join(target.name))?;
    }
    Ok(())
}
