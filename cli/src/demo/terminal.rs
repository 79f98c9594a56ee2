//! Where pictures go: a live screen on a terminal, lines of a log elsewhere, and a recording beside.

use std::io::{self, IsTerminal, Stdout, stdout};
use std::path::Path;

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use ratatui::layout::Rect;
use ratatui::{Terminal, TerminalOptions, Viewport};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use super::cast::Cast;
use super::journal::Journal;
use super::screen::{HEIGHT, Picture, WIDTH, draw};

/// Everything that shows pictures.
pub(super) struct Outlets {
    screen: Option<Screen>,
    journal: Option<Journal>,
    cast: Option<Terminal<CrosstermBackend<Cast>>>,
}

impl Outlets {
    /// Opens what fits: a screen where stdout is a terminal, a log where not.
    pub(super) fn open(record: Option<&Path>) -> io::Result<Self> {
        let live = stdout().is_terminal();
        Ok(Self {
            screen: live.then(Screen::open).transpose()?,
            journal: (!live).then(Journal::default),
            cast: record.map(recorder).transpose()?,
        })
    }

    /// Shows a picture.
    pub(super) fn show(&mut self, picture: &Picture) -> io::Result<()> {
        if let Some(screen) = &mut self.screen {
            screen.terminal.draw(|frame| draw(frame, picture))?;
        }
        if let Some(journal) = &mut self.journal {
            journal.tell(picture);
        }
        if let Some(cast) = &mut self.cast {
            cast.draw(|frame| draw(frame, picture))?;
        }
        Ok(())
    }

    /// Leaves the terminal as it was, with the last picture on it as text.
    pub(super) fn close(mut self, picture: &Picture) {
        if self.screen.take().is_some() {
            Journal::last(picture);
        }
    }
}

fn recorder(path: &Path) -> io::Result<Terminal<CrosstermBackend<Cast>>> {
    let mut cast = Cast::create(path, WIDTH, HEIGHT)?;
    // Not `Terminal::clear`, which asks the terminal where its cursor is: there may be none.
    execute!(cast, Clear(ClearType::All), Hide)?;
    let viewport = Viewport::Fixed(Rect::new(0, 0, WIDTH, HEIGHT));
    Terminal::with_options(CrosstermBackend::new(cast), TerminalOptions { viewport })
}

/// The alternate screen, and a keyboard that does not echo. Restored when dropped.
struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    keyboard: Option<Termios>,
}

impl Screen {
    fn open() -> io::Result<Self> {
        // Not raw mode: Ctrl-C stays a signal, which also reaches us when nobody reads keys.
        let keyboard = tcgetattr(io::stdin()).ok();
        if let Some(mut quiet) = keyboard.clone() {
            quiet.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON);
            tcsetattr(io::stdin(), OptionalActions::Now, &quiet)?;
        }
        execute!(stdout(), EnterAlternateScreen, Hide)?;
        let terminal = Terminal::new(CrosstermBackend::new(stdout()))?;
        Ok(Self { terminal, keyboard })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing restored.
        let _ = execute!(stdout(), LeaveAlternateScreen, Show);
        if let Some(keyboard) = &self.keyboard {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, keyboard);
        }
    }
}
