//! The loop of `top` on a terminal: keys, readings and signals in, the screen out.

use std::io;
use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};

use super::draw::{Theme, draw};
use super::keys::Key;
use super::model::{After, Model};
use super::readings::{Answer, Readings, Wanted};
use super::screen::{self, Screen};

/// Ages and drains are shown in seconds.
const SECOND: Duration = Duration::from_secs(1);
/// A loop that does not end in this time after a signal hangs in its terminal.
const PATIENCE: Duration = Duration::from_millis(300);

/// What the loop waits for.
struct Inputs {
    /// Closed when the terminal is gone.
    keys: mpsc::Receiver<Key>,
    answers: mpsc::Receiver<Answer>,
    /// The terminal has another size.
    resizes: mpsc::Receiver<()>,
    /// A signal asks for a pause.
    stops: mpsc::Receiver<()>,
    /// The process goes on after it was stopped.
    continues: mpsc::Receiver<()>,
    /// A signal asks for the end.
    ends: mpsc::Receiver<()>,
}

/// Shows the table until a key or a signal ends it, or the terminal is gone.
pub(super) async fn run(wanted: Wanted, interval: Duration) -> anyhow::Result<()> {
    // First the signals: from the first change of the terminal on, each of them restores it.
    let ends = end_by_signals()?;
    let [resizes, stops, continues] =
        [SignalKind::window_change(), SignalKind::from_raw(libc::SIGTSTP), SignalKind::from_raw(libc::SIGCONT)]
            .map(follow_signal);
    let (resizes, stops, continues) = (resizes?, stops?, continues?);
    let mut screen = Screen::open().inspect_err(|_| screen::restore())?;
    let (readings, answers) = Readings::start(wanted);
    let inputs = Inputs { keys: screen::keys(), answers, resizes, stops, continues, ends };
    let theme = Theme::of_environment();
    let show = |buffer, all| {
        if all {
            screen.forget();
        }
        screen.show(buffer)
    };
    let ended = follow(inputs, readings, interval, theme, screen::area, show, |pause| match pause {
        Pause::Begins => screen::suspend(),
        Pause::IsOver => screen::enter(),
    });
    let ended = ended.await;
    screen::restore();
    match ended {
        Err(error) if !is_gone(&error) => Err(error.into()),
        _ => Ok(()),
    }
}

/// The terminal is gone, which ends `top` as a key does.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::ENXIO | libc::EPIPE | libc::ENODEV))
}

/// A pause of the process, in which its terminal belongs to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    Begins,
    IsOver,
}

/// `show` draws a screen; its second argument says whether the terminal shows something else than was drawn before. `pause` gives the terminal away,
/// and takes it again.
async fn follow(
    mut inputs: Inputs,
    mut readings: Readings,
    interval: Duration,
    theme: Theme,
    area: impl Fn() -> Rect,
    mut show: impl FnMut(Buffer, bool) -> io::Result<()>,
    mut pause: impl FnMut(Pause) -> io::Result<()>,
) -> io::Result<()> {
    let mut model = Model::default();
    let (mut reads, mut seconds) = (tokio::time::interval(interval), tokio::time::interval(SECOND));
    reads.set_missed_tick_behavior(MissedTickBehavior::Delay);
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut all = true;
    loop {
        let status = readings.status(Instant::now());
        show(draw(&mut model, &status, interval, theme, area()), std::mem::take(&mut all))?;
        tokio::select! {
            key = inputs.keys.recv() => {
                let Some(first) = key else { return Ok(()) };
                // What was typed meanwhile is drawn once.
                let typed = std::iter::once(first).chain(std::iter::from_fn(|| inputs.keys.try_recv().ok()));
                for key in typed {
                    match model.press(key) {
                        After::Quit => return Ok(()),
                        After::Redraw => all = true,
                        After::Suspend => {
                            pause(Pause::Begins)?;
                            all = true;
                        }
                        After::Go => {}
                    }
                }
            }
            Some(answer) = inputs.answers.recv() => {
                if let Some(rows) = readings.take(answer, Instant::now()) {
                    model.take(rows);
                }
            }
            _ = reads.tick() => readings.ask(Instant::now()),
            _ = seconds.tick() => {}
            Some(()) = inputs.resizes.recv() => all = true,
            Some(()) = inputs.stops.recv() => {
                pause(Pause::Begins)?;
                all = true;
            }
            Some(()) = inputs.continues.recv() => {
                pause(Pause::IsOver)?;
                all = true;
            }
            Some(()) = inputs.ends.recv() => return Ok(()),
        }
    }
}

/// A signal ends the loop. Where the loop hangs in a terminal that takes nothing, it ends the process.
fn end_by_signals() -> io::Result<mpsc::Receiver<()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut quit = signal(SignalKind::quit())?;
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
            _ = quit.recv() => {}
        }
        // A loop that has ended takes no message.
        let _ = sender.send(()).await;
        tokio::time::sleep(PATIENCE).await;
        screen::restore();
        std::process::exit(0);
    });
    Ok(receiver)
}

fn follow_signal(kind: SignalKind) -> io::Result<mpsc::Receiver<()>> {
    let mut signals = signal(kind)?;
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        while signals.recv().await.is_some() {
            // One that waits already stands for this one, too.
            let _ = sender.try_send(());
        }
    });
    Ok(receiver)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::super::model::tests::service;
    use super::super::readings::tests::silent;
    use super::super::readings::{Agent, Reader};
    use super::*;

    struct Run {
        keys: mpsc::Sender<Key>,
        answers: mpsc::Sender<Answer>,
        ends: mpsc::Sender<()>,
        shown: Arc<Mutex<String>>,
        ended: tokio::task::JoinHandle<io::Result<()>>,
    }

    impl Run {
        /// A loop whose readers never answer, on a terminal that is `fail`ing from some screen on.
        fn start(fail: Option<i32>) -> Self {
            let (keys, keys_in) = mpsc::channel(8);
            let (answers, answers_in) = mpsc::channel(8);
            let (ends, ends_in) = mpsc::channel(1);
            let [resizes, stops, continues] = [(); 3].map(|()| mpsc::channel(1).1);
            let inputs = Inputs { keys: keys_in, answers: answers_in, resizes, stops, continues, ends: ends_in };
            let shown = Arc::new(Mutex::new(String::new()));
            let show = {
                let shown = Arc::clone(&shown);
                move |buffer: Buffer, _| {
                    *shown.lock().expect("no panic") =
                        buffer.content.iter().map(ratatui::buffer::Cell::symbol).collect();
                    fail.map_or(Ok(()), |code| Err(io::Error::from_raw_os_error(code)))
                }
            };
            let readings = Readings::new(silent(), silent());
            let theme = Theme::of_environment();
            let area = || Rect::new(0, 0, 120, 20);
            let ended = tokio::spawn(follow(inputs, readings, Duration::from_secs(2), theme, area, show, |_| Ok(())));
            Self { keys, answers, ends, shown, ended }
        }

        async fn shows(&self, text: &str) {
            // Paused time goes on as soon as nothing else is to be done.
            for _ in 0..100 {
                if self.shown.lock().expect("no panic").contains(text) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            panic!("{text:?} is not on the screen: {}", self.shown.lock().expect("no panic"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn keys_work_while_readings_hang_and_the_screen_says_for_how_long() {
        let run = Run::start(None);
        run.shows("agent: no answer for 3s").await;
        run.keys.send(Key::Char('?')).await.expect("it runs");
        run.shows("this help").await;
        run.shows("tables: no answer for 6s").await;
        run.keys.send(Key::Escape).await.expect("it runs");
        run.answers.send(Answer::Tables(Ok(vec![service(1, "web", 1.0)]))).await.expect("it runs");
        run.shows("demo").await;
        run.answers.send(Answer::Agent(Agent::None("no agent is running".into()))).await.expect("it runs");
        run.shows("agent: no agent is running").await;
        run.keys.send(Key::Char('q')).await.expect("it runs");
        assert!(run.ended.await.expect("no panic").is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_with_its_keyboard_and_by_a_signal() {
        let Run { keys, ended, answers: _answers, ends: _ends, .. } = Run::start(None);
        drop(keys);
        assert!(ended.await.expect("no panic").is_ok());
        let run = Run::start(None);
        run.ends.send(()).await.expect("it runs");
        assert!(run.ended.await.expect("no panic").is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_with_a_terminal_that_takes_no_more() {
        let run = Run::start(Some(libc::EIO));
        let error = run.ended.await.expect("no panic").expect_err("an error of the terminal");
        assert!(is_gone(&error));
        assert!(!is_gone(&io::Error::from_raw_os_error(libc::ENOSPC)));
    }

    #[tokio::test]
    async fn a_reader_answers_each_request_once() {
        let (answers, mut received) = mpsc::channel(4);
        let mut count = 0;
        let reader = Reader::start(answers, move || {
            count += 1;
            Answer::Agent(Agent::None(count.to_string()))
        });
        let mut readings = Readings::new(silent(), reader);
        for expected in ["1", "2"] {
            readings.ask(Instant::now());
            readings.ask(Instant::now());
            let answer = tokio::time::timeout(Duration::from_secs(5), received.recv()).await.expect("in time");
            let answer = answer.expect("a reader that lives");
            assert!(matches!(&answer, Answer::Agent(Agent::None(number)) if number == expected), "{answer:?}");
            readings.take(answer, Instant::now());
        }
    }
}
