//! Writes the documents as a book for mdBook, and checks the links of the site that it builds: `make site`.

use std::path::Path;
use std::process::ExitCode;
use std::{env, io};

use deploy::book::{Book, broken_links};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["write", root, folder] => write(Path::new(root), Path::new(folder)),
        ["check", site] => check(Path::new(site)),
        _ => Err(io::Error::other("usage: book write ROOT FOLDER, or book check SITE")),
    };
    if let Err(error) = done {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn write(root: &Path, folder: &Path) -> io::Result<()> {
    Book::read(root)?.write(root, folder)
}

fn check(site: &Path) -> io::Result<()> {
    let broken = broken_links(site)?;
    if broken.is_empty() {
        return Ok(());
    }
    Err(io::Error::other(format!("links that lead nowhere:\n{}", broken.join("\n"))))
}
