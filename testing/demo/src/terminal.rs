//! Where pictures go: a live screen on a terminal, lines of a log elsewhere, and a recording beside.

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

use crate::cast::Cast;
use crate::journal::Journal;
use crate::screen::{HEIGHT, Picture, WIDTH, draw};
use crate::story::{CardLine, NodeLine};

/// Everything that shows pictures.
pub(crate) struct Outlets {
    screen: Option<Screen>,
    journal: Option<Journal>,
    recorder: Option<Recorder>,
}

impl Outlets {
    /// Opens what fits: a screen where stdout is a terminal, a log where not.
    pub(crate) fn open(record: Option<&Path>) -> anyhow::Result<Self> {
        let recorder = |path: &Path| {
            Recorder::open(path).with_context(|| format!("cannot record to {}", path.display()))
        };
        let live = stdout().is_terminal() && !is_dumb();
        Ok(Self {
            screen: live.then(Screen::open).transpose().context("cannot draw on this terminal")?,
            journal: (!live).then(Journal::default),
            recorder: record.map(recorder).transpose()?,
        })
    }

    /// Shows a picture.
    ///
    /// # Errors
    /// Where stdout takes no more.
    pub(crate) fn show(&mut self, picture: &Picture) -> io::Result<()> {
        if let Some(recorder) = &mut self.recorder {
            recorder.terminal.draw(|frame| draw(frame, picture))?;
        }
        if let Some(screen) = &mut self.screen {
            screen.show(picture)?;
        }
        if let Some(journal) = &mut self.journal {
            journal.tell(picture)?;
        }
        Ok(())
    }

    /// Leaves the terminal as it was, with the nodes as they were last; tells what went wrong with the
    /// recording, if anything did.
    pub(crate) fn close(mut self, picture: &Picture) -> Option<String> {
        if self.screen.take().is_some() {
            // A terminal that is gone needs no last words.
            let _ = stdout().write_all(last_words(picture).as_bytes());
        }
        let Recorder { cast, path, .. } = self.recorder?;
        cast.broken().map(|why| format!("the recording {} is not whole: {why}", path.display()))
    }
}

/// A terminal that cannot move its cursor gets the log.
fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb")
}

/// What remains once the screen is gone.
fn last_words(picture: &Picture) -> String {
    let used = |card: &CardLine| {
        let used: u64 = card.pods.iter().map(|(_, units)| units).sum();
        format!("{used:>6} of {}", card.units)
    };
    let line = |node: &NodeLine| {
        let percent =
            |load: Option<f64>| load.map_or("?".to_owned(), |load| format!("{:.0}%", load * 100.0));
        let (cpu, memory) = (percent(node.cpu), percent(node.memory));
        let cards: String = node.cards.iter().map(used).collect();
        format!("{:<10} {cpu:>5} {memory:>7} {:>5} {cards}\n", node.name, node.pods)
    };
    let heading = "node         cpu  memory  pods   GiB of each card\n".to_owned();
    picture.scene.nodes.iter().fold(heading, |text, node| text + &line(node))
}

/// What draws into a file.
struct Recorder {
    terminal: Terminal<CrosstermBackend<Cast>>,
    cast: Cast,
    path: PathBuf,
}

impl Recorder {
    fn open(path: &Path) -> io::Result<Self> {
        let mut cast = Cast::create(path, WIDTH, HEIGHT)?;
        // Not `Terminal::clear`, which asks the terminal where its cursor is: there may be none.
        execute!(cast, Clear(ClearType::All), Hide)?;
        let terminal = fixed(cast.clone(), Rect::new(0, 0, WIDTH, HEIGHT))?;
        Ok(Self { terminal, cast, path: path.to_owned() })
    }
}

fn fixed<W: Write>(to: W, area: Rect) -> io::Result<Terminal<CrosstermBackend<W>>> {
    let viewport = Viewport::Fixed(area);
    Terminal::with_options(CrosstermBackend::new(to), TerminalOptions { viewport })
}

/// The alternate screen, and a keyboard that does not echo. Restored when dropped.
struct Screen {
    /// Never dropped: it would print where it cannot show the cursor, and panic where it cannot print.
    terminal: ManuallyDrop<Terminal<CrosstermBackend<Stdout>>>,
    area: Rect,
    keyboard: Option<Termios>,
}

impl Screen {
    fn open() -> io::Result<Self> {
        // Not raw mode: Ctrl-C stays a signal, which also reaches us when nobody reads keys.
        let keyboard = tcgetattr(io::stdin()).ok();
        if let Some(mut quiet) = keyboard.clone() {
            quiet.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON);
            // Ctrl-Z would leave a screen that nobody draws on.
            quiet.special_codes[SpecialCodeIndex::VSUSP] = 0;
            tcsetattr(io::stdin(), OptionalActions::Now, &quiet)?;
        }
        execute!(stdout(), EnterAlternateScreen, Hide)?;
        let area = area();
        Ok(Self { terminal: ManuallyDrop::new(fixed(stdout(), area)?), area, keyboard })
    }

    fn show(&mut self, picture: &Picture) -> io::Result<()> {
        let area = area();
        if area != self.area {
            self.terminal.resize(area)?;
            self.area = area;
        }
        self.terminal.draw(|frame| draw(frame, picture))?;
        Ok(())
    }
}

/// Where to draw: a terminal that does not know its size (a serial line, some containers) gets the least.
fn area() -> Rect {
    let size = tcgetwinsize(stdout()).map(|size| (size.ws_col, size.ws_row));
    let known = size.ok().filter(|(width, height)| *width > 0 && *height > 0);
    let (width, height) = known.unwrap_or((WIDTH, HEIGHT));
    Rect::new(0, 0, width, height)
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing restored.
        let _ = execute!(stdout(), LeaveAlternateScreen, Show);
        if let Some(keyboard) = &self.keyboard {
            // What was typed meanwhile was not meant for whoever reads next.
            let _ = tcsetattr(io::stdin(), OptionalActions::Flush, keyboard);
        }
    }
}
