//! Where snapshots are shown: on the live terminal, or as a log where stdout is none, and in the recording.

use std::io::{self, IsTerminal, Stdout, Write, stdout};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use anyhow::Context;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use ratatui::layout::Rect;
use ratatui::{Terminal, TerminalOptions, Viewport};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};

use super::asciicast::Asciicast;
use super::frame::{HEIGHT, WIDTH, draw};
use super::log::Log;
use super::snapshot::Snapshot;

/// All outputs.
pub(crate) struct Outputs {
    /// Where stdout is a terminal.
    screen: Option<Screen>,
    /// Where it is none.
    log: Option<Log>,
    recorder: Option<Recorder>,
}

impl Outputs {
    /// Opens the terminal or the log, and the recording to `record`.
    ///
    /// # Errors
    /// When the terminal or the file cannot be written.
    pub(crate) fn open(record: Option<&Path>) -> anyhow::Result<Self> {
        let recorder = match record {
            Some(path) => {
                let opened = Recorder::open(path);
                Some(opened.with_context(|| format!("cannot record to {}", path.display()))?)
            }
            None => None,
        };
        let live = stdout().is_terminal() && !is_dumb();
        Ok(Self {
            screen: live.then(Screen::open).transpose().context("cannot draw on this terminal")?,
            log: (!live).then(Log::default),
            recorder,
        })
    }

    /// Shows a snapshot.
    ///
    /// # Errors
    /// When stdout is closed.
    pub(crate) fn show(&mut self, snapshot: &Snapshot) -> io::Result<()> {
        if let Some(recorder) = &mut self.recorder {
            recorder.terminal.draw(|frame| draw(frame, snapshot))?;
        }
        if let Some(screen) = &mut self.screen {
            screen.show(snapshot)?;
        }
        if let Some(log) = &mut self.log {
            log.write(snapshot)?;
        }
        Ok(())
    }

    /// Restores the terminal and writes the last state of the nodes to it. Returns what went wrong with the recording.
    pub(crate) fn close(mut self, snapshot: &Snapshot) -> Option<String> {
        if self.screen.take().is_some() {
            // The terminal may have been closed.
            let _ = stdout().write_all(nodes_table(snapshot).as_bytes());
        }
        let Recorder { cast, path, .. } = self.recorder?;
        cast.error().map(|why| format!("the recording {} is not whole: {why}", path.display()))
    }
}

/// Whether the terminal cannot move its cursor. It gets the log.
fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb")
}

/// The nodes as plain text, for the terminal after the screen is closed.
fn nodes_table(snapshot: &Snapshot) -> String {
    let mut table = "node         cpu  memory  pods   GiB of each card\n".to_owned();
    for node in &snapshot.nodes {
        let cpu = percent(node.cpu);
        let memory = percent(node.memory);
        let cards: String =
            node.cards.iter().map(|card| format!("{:>6} of {}", card.used(), card.units)).collect();
        table += &format!("{:<10} {cpu:>5} {memory:>7} {:>5} {cards}\n", node.name, node.pods);
    }
    table
}

fn percent(load: Option<f64>) -> String {
    load.map_or("?".to_owned(), |load| format!("{:.0}%", load * 100.0))
}

/// Draws frames into a recording.
struct Recorder {
    terminal: Terminal<CrosstermBackend<Asciicast>>,
    cast: Asciicast,
    path: PathBuf,
}

impl Recorder {
    fn open(path: &Path) -> io::Result<Self> {
        let mut cast = Asciicast::create(path, WIDTH, HEIGHT)?;
        // `Terminal::clear` would ask a terminal where its cursor is, and there may be none.
        execute!(cast, Clear(ClearType::All), Hide)?;
        let terminal = fixed_terminal(cast.clone(), Rect::new(0, 0, WIDTH, HEIGHT))?;
        Ok(Self { terminal, cast, path: path.to_owned() })
    }
}

fn fixed_terminal<W: Write>(to: W, area: Rect) -> io::Result<Terminal<CrosstermBackend<W>>> {
    let viewport = Viewport::Fixed(area);
    Terminal::with_options(CrosstermBackend::new(to), TerminalOptions { viewport })
}

/// The terminal's alternate screen, with the keyboard's echo off. Dropping it restores both.
struct Screen {
    /// Never dropped: its `drop` shows the cursor, prints an error where that fails, and panics where stderr is closed.
    terminal: ManuallyDrop<Terminal<CrosstermBackend<Stdout>>>,
    area: Rect,
    /// The keyboard's settings before.
    keyboard: Option<Termios>,
}

impl Screen {
    fn open() -> io::Result<Self> {
        // In raw mode Ctrl-C would be a key instead of a signal, and this program reads no keys.
        let keyboard = tcgetattr(io::stdin()).ok();
        if let Some(mut quiet) = keyboard.clone() {
            quiet.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON);
            // Ctrl-Z would leave the shell with the alternate screen.
            quiet.special_codes[SpecialCodeIndex::VSUSP] = 0;
            tcsetattr(io::stdin(), OptionalActions::Now, &quiet)?;
        }
        execute!(stdout(), EnterAlternateScreen, Hide)?;
        let area = terminal_area();
        Ok(Self { terminal: ManuallyDrop::new(fixed_terminal(stdout(), area)?), area, keyboard })
    }

    fn show(&mut self, snapshot: &Snapshot) -> io::Result<()> {
        let area = terminal_area();
        if area != self.area {
            self.terminal.resize(area)?;
            self.area = area;
        }
        self.terminal.draw(|frame| draw(frame, snapshot))?;
        Ok(())
    }
}

/// The terminal's area, or the smallest one where it does not know its size, as on a serial line or in some containers.
fn terminal_area() -> Rect {
    let size = tcgetwinsize(stdout()).map(|size| (size.ws_col, size.ws_row));
    let known = size.ok().filter(|(width, height)| *width > 0 && *height > 0);
    let (width, height) = known.unwrap_or((WIDTH, HEIGHT));
    Rect::new(0, 0, width, height)
}

impl Drop for Screen {
    fn drop(&mut self) {
        // The terminal may have been closed.
        let _ = execute!(stdout(), LeaveAlternateScreen, Show);
        if let Some(keyboard) = &self.keyboard {
            // Flush: keys typed meanwhile were not meant for the shell.
            let _ = tcsetattr(io::stdin(), OptionalActions::Flush, keyboard);
        }
    }
}
