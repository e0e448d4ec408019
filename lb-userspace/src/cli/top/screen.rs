//! The terminal of `top`: raw mode, keys and drawing. A terminal that is gone ends all of them with an error, never with a panic.
//!
//! Parts of ratatui and crossterm are not used: one asks the terminal for the position of its cursor, another starts `tput` for the size. A dead
//! terminal answers neither.

use std::io::{self, Write as _};
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use ratatui::backend::{Backend as _, CrosstermBackend};
use ratatui::buffer::Buffer;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::queue;
use ratatui::crossterm::style::ResetColor;
use ratatui::crossterm::terminal::{Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use ratatui::layout::Rect;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpid, kill_process};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::sync::mpsc;

use super::keys::{self, Key};

/// A terminal of unknown size is taken for one of this size.
const USUAL: (u16, u16) = (80, 24);
/// Larger sizes are none of a terminal: memory for them is not taken.
const LARGEST: (u16, u16) = (1_000, 500);
/// After this long, Escape is a key and not the begin of a sequence.
const ESCAPE_TIME: Duration = Duration::from_millis(50);
/// How long the end waits for a terminal that takes nothing.
const PATIENCE: Duration = Duration::from_millis(100);

/// The terminal's settings before `top`, while it has changed them.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// The screen as it was last drawn.
pub(super) struct Screen {
    drawn: Buffer,
    /// The terminal may show something else: all of it is drawn.
    is_unknown: bool,
}

impl Screen {
    /// Puts the terminal into raw mode, on its alternate screen. [`restore`] undoes it.
    pub fn open() -> io::Result<Self> {
        restore_on_panic();
        enter()?;
        Ok(Self { drawn: Buffer::empty(Rect::ZERO), is_unknown: true })
    }

    /// Draws what differs from what was drawn before.
    pub fn show(&mut self, buffer: Buffer) -> io::Result<()> {
        let mut bytes = Vec::new();
        if self.is_unknown || self.drawn.area != buffer.area {
            queue!(bytes, Clear(ClearType::All))?;
            self.drawn = Buffer::empty(buffer.area);
        }
        let changes = self.drawn.diff(&buffer);
        CrosstermBackend::new(&mut bytes).draw(changes.into_iter())?;
        self.drawn = buffer;
        self.is_unknown = false;
        write(&bytes)
    }

    /// All is drawn the next time.
    pub const fn forget(&mut self) {
        self.is_unknown = true;
    }
}

/// Takes the terminal. It does so again where the process was stopped: a shell may have changed the settings meanwhile.
pub(super) fn enter() -> io::Result<()> {
    let mut raw = {
        let mut before = lock();
        // From here on, a panic or a signal finds the settings to restore.
        match &*before {
            Some(before) => before.clone(),
            None => before.insert(tcgetattr(rustix::stdio::stdin())?).clone(),
        }
    };
    raw.make_raw();
    // A process in the background is stopped here, until it is in the foreground.
    rustix::io::retry_on_intr(|| tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &raw))?;
    let mut bytes = Vec::new();
    queue!(bytes, EnterAlternateScreen, Hide)?;
    write(&bytes)
}

/// Gives the terminal back, stops the process as Ctrl-Z does, and takes the terminal again once the process goes on.
pub(super) fn suspend() -> io::Result<()> {
    restore();
    // A handler has replaced what SIGTSTP does by itself.
    kill_process(getpid(), Signal::STOP)?;
    enter()
}

/// The size of the terminal now.
pub(super) fn area() -> Rect {
    let size = tcgetwinsize(rustix::stdio::stdout()).map_or((0, 0), |size| (size.ws_col, size.ws_row));
    let or_usual = |given: u16, usual: u16, largest: u16| if given == 0 { usual } else { given.min(largest) };
    Rect::new(0, 0, or_usual(size.0, USUAL.0, LARGEST.0), or_usual(size.1, USUAL.1, LARGEST.1))
}

/// Gives the terminal back as it was. It waits neither for a terminal that takes nothing, nor for another thread that draws on it.
pub(super) fn restore() {
    let Some(before) = lock().take() else { return };
    // What fails here fails because the terminal is gone: there is nothing to restore then.
    let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &before);
    let mut bytes = Vec::new();
    let _ = queue!(bytes, ResetColor, Show, LeaveAlternateScreen);
    if takes_bytes(PATIENCE) {
        let _ = rustix::io::write(rustix::stdio::stdout(), &bytes);
    }
}

fn lock() -> std::sync::MutexGuard<'static, Option<Termios>> {
    BEFORE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The message of a panic is to be read on the terminal as it was.
fn restore_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            report(panic);
        }));
    });
}

/// Writes all of it. Standard output may be non-blocking: another process may have made it so.
fn write(mut bytes: &[u8]) -> io::Result<()> {
    io::stdout().flush()?;
    while !bytes.is_empty() {
        match rustix::io::write(rustix::stdio::stdout(), bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(length) => bytes = &bytes[length..],
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => drop(takes_bytes(Duration::from_secs(1))),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn takes_bytes(patience: Duration) -> bool {
    is_ready(rustix::stdio::stdout(), PollFlags::OUT, patience)
}

fn is_ready(terminal: BorrowedFd<'_>, flags: PollFlags, patience: Duration) -> bool {
    let patience = Timespec::try_from(patience).ok();
    let mut terminals = [PollFd::from_borrowed_fd(terminal, flags)];
    poll(&mut terminals, patience.as_ref()).is_ok_and(|ready| ready > 0)
}

/// Starts the thread that reads keys. Its channel closes when the terminal is gone.
pub(super) fn keys() -> mpsc::Receiver<Key> {
    let (sender, receiver) = mpsc::channel(64);
    // It ends with the process, or with the terminal.
    std::thread::spawn(move || {
        let (mut bytes, mut chunk) = (Vec::new(), [0; 256]);
        loop {
            match rustix::io::read(rustix::stdio::stdin(), &mut chunk) {
                Ok(length) if length > 0 => bytes.extend(&chunk[..length]),
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::AGAIN) => {
                    is_ready(rustix::stdio::stdin(), PollFlags::IN, Duration::from_secs(1));
                    continue;
                }
                // End of file, or an error: the terminal has hung up.
                _ => return,
            }
            let mut pressed = keys::take(&mut bytes, false);
            if !bytes.is_empty() && !is_ready(rustix::stdio::stdin(), PollFlags::IN, ESCAPE_TIME) {
                pressed.extend(keys::take(&mut bytes, true));
            }
            if pressed.into_iter().any(|key| sender.blocking_send(key).is_err()) {
                return;
            }
        }
    });
    receiver
}
