//! `ballast top` and `get --watch` as processes: on a terminal, on one that goes away, and without one. They need no tables and no root.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{FlowArg, Termios, tcflow, tcgetattr};
use nix::unistd::Pid;
use tempfile::TempDir;

/// Nothing here takes so long.
const LIMIT: Duration = Duration::from_secs(10);

/// Descriptors of a terminal that is being made go to no other test's process.
static STARTS: Mutex<()> = Mutex::new(());

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = now() + LIMIT;
    while !is_so() {
        assert!(now() < end, "{what}");
        pause(Duration::from_millis(5));
    }
}

#[expect(clippy::disallowed_methods, reason = "waits for another process")]
fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "waits for another process")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

fn ballast(arguments: &[&str], run_dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ballast"));
    command.args(arguments).arg("--bpffs").arg(run_dir.join("bpffs")).arg("--run-dir").arg(run_dir);
    command.env("TERM", "xterm-256color").env_remove("NO_COLOR");
    command
}

/// A process on a terminal of its own.
struct OnTerminal {
    process: Child,
    /// The user's end of the terminal; `None`: it has hung up.
    keyboard: Option<File>,
    /// The end of the process, for the terminal's settings.
    terminal: OwnedFd,
    settings: Termios,
    screen: Arc<Mutex<(vt100::Parser, Vec<u8>)>>,
    /// The thread that reads the screen. It ends when the other end of the socket is closed.
    reader: Option<(UnixStream, JoinHandle<()>)>,
    _dir: TempDir,
}

impl OnTerminal {
    fn top(arguments: &[&str]) -> Self {
        Self::start(TempDir::new().expect("a folder"), arguments, &[])
    }

    fn start(dir: TempDir, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let size = Winsize { ws_row: 24, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
        let started = STARTS.lock().unwrap_or_else(PoisonError::into_inner);
        let pair = openpty(&size, None).expect("a terminal");
        // A process that had the other end, too, would keep its own terminal alive.
        for end in [&pair.master, &pair.slave] {
            fcntl(end, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).expect("a descriptor");
        }
        let settings = tcgetattr(&pair.slave).expect("its settings");
        let end = || Stdio::from(pair.slave.try_clone().expect("a descriptor"));
        let mut command = ballast(arguments, dir.path());
        command.envs(environment.iter().copied()).stdin(end()).stdout(end()).stderr(end());
        // Not in the session of the test's own terminal, which would get its keys.
        let process = command.process_group(0).spawn().expect("it starts");
        drop((command, started));
        let keyboard = File::from(pair.master);
        let screen = Arc::new(Mutex::new((vt100::Parser::new(24, 100, 0), Vec::new())));
        let mut output = keyboard.try_clone().expect("a descriptor");
        let shown = Arc::clone(&screen);
        let (stop, stopped) = UnixStream::pair().expect("a pair");
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            loop {
                let mut ends = [&output.as_fd(), &stopped.as_fd()].map(|end| PollFd::new(*end, PollFlags::POLLIN));
                poll(&mut ends, PollTimeout::NONE).expect("a poll");
                if ends[1].any() == Some(true) {
                    return;
                }
                let Ok(length @ 1..) = output.read(&mut bytes) else { return };
                let mut shown = shown.lock().expect("no panic");
                shown.0.process(&bytes[..length]);
                shown.1.extend(&bytes[..length]);
            }
        });
        let reader = Some((stop, reader));
        Self { process, keyboard: Some(keyboard), terminal: pair.slave, settings, screen, reader, _dir: dir }
    }

    /// Closes the end at which keys are pressed, and where the screen is.
    fn hang_up(&mut self) {
        let (stop, reader) = self.reader.take().expect("a reader");
        drop(stop);
        reader.join().expect("no panic");
        self.keyboard = None;
    }

    fn text(&self) -> String {
        self.screen.lock().expect("no panic").0.screen().contents()
    }

    fn bytes(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().expect("no panic").1).into_owned()
    }

    fn shows(&self, text: &str) {
        until(&format!("{text:?} is not shown"), || self.text().contains(text));
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.as_mut().expect("a keyboard").write_all(keys.as_bytes()).expect("a terminal");
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.process.id().cast_signed());
        // It may have ended by itself.
        let _ = kill(pid, signal);
    }

    fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        until("it does not end", || {
            status = self.process.try_wait().expect("a child");
            status.is_some()
        });
        status.expect("an end")
    }

    /// The terminal is as it was: its settings, the cursor, and the screen of before.
    fn is_restored(&self) {
        let settings = tcgetattr(&self.terminal).expect("its settings");
        assert_eq!(settings, self.settings);
        until("the screen is not restored", || {
            let shown = self.screen.lock().expect("no panic");
            !shown.0.screen().alternate_screen() && !shown.0.screen().hide_cursor()
        });
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        // It has ended, or a test has failed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_node_without_tables_and_agent_is_shown_as_such() {
    let mut top = OnTerminal::top(&["top"]);
    top.shows("agent: no agent is running");
    top.shows("tables: ");
    top.press("?");
    top.shows("back to the services");
    // Escape closes the help; in the list it ends nothing.
    top.press("\x1b");
    top.shows("Enter backends");
    top.press("\x1b");
    top.press("/web");
    top.shows("/web_");
    top.press("\r");
    top.shows("filter: web");
    top.press("q");
    assert_eq!(top.ended().code(), Some(0));
    top.is_restored();
}

#[test]
fn an_agent_that_hangs_is_reported_while_keys_work() {
    let dir = TempDir::new().expect("a folder");
    // It takes connections, and answers none.
    let _agent = UnixListener::bind(dir.path().join("agent.sock")).expect("a socket");
    let mut top = OnTerminal::start(dir, &["top"], &[]);
    top.shows("agent: no answer for 2s");
    top.press("?");
    top.shows("back to the services");
    top.press("q\x03");
    assert_eq!(top.ended().code(), Some(0));
    top.is_restored();
}

#[test]
fn it_ends_when_its_terminal_goes_away() {
    let mut top = OnTerminal::top(&["top"]);
    top.shows("tables: ");
    // No signal comes: the terminal is not the controlling one.
    top.hang_up();
    assert_eq!(top.ended().code(), Some(0));
}

#[test]
fn signals_end_it_at_any_moment_and_the_terminal_is_restored() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let mut top = OnTerminal::top(&["top"]);
        top.shows("tables: ");
        top.signal(signal);
        assert_eq!(top.ended().code(), Some(0), "{signal}");
        top.is_restored();
    }
    for delay in 0..12 {
        let mut top = OnTerminal::top(&["top", "--interval", "100ms"]);
        pause(Duration::from_millis(delay * 2));
        top.signal(Signal::SIGTERM);
        let status = top.ended();
        // Before it has changed the terminal, the signal ends it by itself.
        assert!(status.code() == Some(0) || status.signal() == Some(Signal::SIGTERM as i32), "{status}");
        top.is_restored();
    }
}

/// An agent that hangs: the audit waits for it.
#[test]
fn what_a_command_waits_for_is_shown_on_a_terminal_alone() {
    let hanging = || {
        let dir = TempDir::new().expect("a folder");
        let agent = UnixListener::bind(dir.path().join("agent.sock")).expect("a socket");
        (dir, agent)
    };
    let (dir, _agent) = hanging();
    let mut audit = OnTerminal::start(dir, &["audit"], &[]);
    audit.shows("comparing the tables: 1 s");
    audit.shows("comparing the tables: 2 s");
    audit.signal(Signal::SIGTERM);
    audit.ended();
    let (dir, agent) = hanging();
    let mut audit = ballast(&["audit"], dir.path());
    let mut audit = audit.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    let question = agent.accept().expect("a question");
    pause(Duration::from_millis(1_300));
    drop(question);
    let mut said = String::new();
    audit.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
    assert!(said.starts_with("ballast: ") && !said.contains("comparing"), "{said}");
    assert_eq!(audit.wait().expect("a child").code(), Some(2));
}

/// `status` is the one that needs no tables.
#[test]
fn states_are_coloured_on_a_terminal_alone() {
    let red = "\x1b[31mnot running\x1b[0m";
    for (environment, is_coloured) in [(&[][..], true), (&[("NO_COLOR", "1")][..], false)] {
        let mut status = OnTerminal::start(TempDir::new().expect("a folder"), &["status"], environment);
        assert_eq!(status.ended().code(), Some(0));
        status.shows("Agent:");
        until(&status.bytes(), || status.bytes().contains(red) == is_coloured);
    }
    let dir = TempDir::new().expect("a folder");
    let output = ballast(&["status"], dir.path()).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("not running") && !text.contains('\x1b'), "{text}");
}

/// By its key, and by the signal of another process.
#[test]
fn it_gives_the_terminal_away_while_it_is_suspended() {
    let mut top = OnTerminal::top(&["top"]);
    top.shows("tables: ");
    for by_key in [true, false] {
        if by_key {
            top.press("\x1a");
        } else {
            top.signal(Signal::SIGTSTP);
        }
        let stat = format!("/proc/{}/stat", top.process.id());
        until("it is not stopped", || std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T ")));
        top.is_restored();
        // What others write meanwhile is not there when it goes on.
        let written = b"\x1b[2J\x1b[HWRITTEN BY A SHELL\r\n";
        nix::unistd::write(&top.terminal, written).expect("a terminal");
        top.shows("WRITTEN BY A SHELL");
        top.signal(Signal::SIGCONT);
        top.shows("tables: ");
        assert!(!top.text().contains("WRITTEN"), "{}", top.text());
        let shown = top.screen.lock().expect("no panic").0.screen().alternate_screen();
        assert!(shown && tcgetattr(&top.terminal).expect("its settings") != top.settings);
        top.press("?");
        top.shows("back to the services");
        top.press("\x1b");
        top.shows("Enter backends");
    }
    top.press("q");
    assert_eq!(top.ended().code(), Some(0));
    top.is_restored();
}

#[test]
fn signals_end_it_while_the_terminal_takes_nothing() {
    let mut top = OnTerminal::top(&["top", "--interval", "100ms"]);
    top.shows("tables: ");
    let terminal = top.terminal.as_fd();
    tcflow(terminal, FlowArg::TCOOFF).expect("a stop");
    // Each draws all of the screen, which blocks.
    top.press("\x0c");
    pause(Duration::from_millis(200));
    top.signal(Signal::SIGTERM);
    assert_eq!(top.ended().code(), Some(0));
    let settings = tcgetattr(&top.terminal).expect("its settings");
    assert_eq!(settings, top.settings);
}

#[test]
fn colours_are_left_out_where_they_are_not_wanted() {
    let colour = |text: &str| ["\x1b[31m", "\x1b[38;5;", "\x1b[33m"].iter().any(|code| text.contains(code));
    for (environment, is_coloured) in [(&[][..], true), (&[("NO_COLOR", "1")][..], false)] {
        let mut top = OnTerminal::start(TempDir::new().expect("a folder"), &["top"], environment);
        top.shows("agent: no agent is running");
        top.press("q");
        assert_eq!(top.ended().code(), Some(0));
        assert_eq!(colour(&top.bytes()), is_coloured, "{:?}", top.bytes());
    }
    let mut top = OnTerminal::start(TempDir::new().expect("a folder"), &["top"], &[("TERM", "dumb")]);
    top.shows("ballast: agent: no agent is running");
    assert!(!top.bytes().contains('\x1b'), "{:?}", top.bytes());
    top.signal(Signal::SIGTERM);
    top.ended();
}

#[test]
fn without_a_terminal_it_is_plain_text() {
    let dir = TempDir::new().expect("a folder");
    let done = ballast(&["top", "--once"], dir.path()).stdin(Stdio::null()).output().expect("it starts");
    let error = String::from_utf8(done.stderr).expect("text");
    assert_eq!(done.status.code(), Some(1));
    assert!(error.starts_with("ballast: ") && error.lines().count() == 1 && !error.contains('\x1b'), "{error:?}");
    assert!(done.stdout.is_empty());
}

/// The program of a release aborts on a panic: a message to a terminal that is gone must not be one.
#[test]
fn an_error_is_no_panic_where_nobody_can_read_it() {
    let _started = STARTS.lock().unwrap_or_else(PoisonError::into_inner);
    let pair = openpty(None, None).expect("a terminal");
    let dir = TempDir::new().expect("a folder");
    let mut command = ballast(&["top", "--once"], dir.path());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::from(pair.slave));
    drop(pair.master);
    assert_eq!(command.status().expect("it starts").code(), Some(1));
}

#[test]
fn a_watch_goes_on_after_a_reading_that_fails() {
    let dir = TempDir::new().expect("a folder");
    let plain = ballast(&["get", "services", "--watch", "--interval", "100ms"], dir.path());
    // As a shell starts it, also where these tests run in the background of a script.
    let mut command = Command::new("env");
    command.arg("--default-signal=INT").arg(plain.get_program()).args(plain.get_args());
    let mut watch = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut errors = std::io::BufReader::new(watch.stderr.take().expect("a pipe"));
    let mut line = || {
        let mut text = String::new();
        std::io::BufRead::read_line(&mut errors, &mut text).expect("a line");
        text
    };
    let (first, second) = (line(), line());
    assert!(first.starts_with("ballast: ") && first == second, "{first} {second}");
    kill(Pid::from_raw(watch.id().cast_signed()), Signal::SIGINT).expect("a process");
    let status = watch.wait().expect("a child");
    assert_eq!(status.signal(), Some(Signal::SIGINT as i32), "a shell shows 130");
}
