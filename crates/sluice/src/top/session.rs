//! The display on a terminal, from its first to its last frame. The terminal is restored at the end, on signals and on a panic.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use sluice_api::top::Top;
use sluice_daemon::failure::Failure;
use tokio::signal::unix::{SignalKind, signal};

use super::app::{Action, App};
use super::fetch::Fetcher;
use super::model::{Name, Object};
use super::rows::View;
use super::screen;
use super::theme::Theme;
use crate::control::Request;
use crate::control::client::Daemon;

/// Time after which the display is drawn again if nothing happens, to show how old it is.
const IDLE: Duration = Duration::from_secs(1);

/// An event for the display.
pub(super) enum Message {
    Input(Event),
    /// The terminal has gone.
    InputLost(io::Error),
    /// A signal that ends the display.
    End,
    Snapshot(Result<Top, String>),
    Details(Name, Option<Object>),
    Changed(Result<String, String>),
}

/// Shows what the daemon serves until it is ended, or `count` times.
///
/// # Errors
/// If there is no terminal, or no daemon at the first attempt.
pub(crate) fn run(daemon: &Daemon, interval: Duration, count: Option<u64>, view: View) -> Result<(), Failure> {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() || is_dumb {
        let advice = "There is no terminal to draw on: use --batch, for example `sluice top --batch -n1 -o json`";
        return Err(Failure::Run(advice.into()));
    }
    let mut app = App::new(view);
    app.update(daemon.get(&Request::Top)?);
    let (messages, inbox) = channel();
    on_signals(messages.clone())?;
    let fetcher = Fetcher::start(daemon.clone(), interval, messages.clone())?;
    // Also restores the terminal if this thread panics.
    let terminal = ratatui::try_init()?;
    let session = Session { daemon, messages, fetcher, app, left: count, last_reply: Instant::now() };
    let result = session.run(terminal, &inbox);
    let restored = ratatui::try_restore();
    result?;
    // A terminal that has gone need not be restored.
    drop(restored);
    Ok(())
}

struct Session<'a> {
    daemon: &'a Daemon,
    messages: Sender<Message>,
    fetcher: Fetcher,
    app: App,
    /// Refreshes left.
    left: Option<u64>,
    last_reply: Instant,
}

impl Session<'_> {
    fn run(mut self, mut terminal: DefaultTerminal, inbox: &std::sync::mpsc::Receiver<Message>) -> Result<(), Failure> {
        read_input(self.messages.clone())?;
        let theme = Theme::of_environment(|name| std::env::var(name).ok());
        self.left = self.left.map(|left| left.saturating_sub(1));
        loop {
            self.app.silent_seconds = self.last_reply.elapsed().as_secs();
            terminal.draw(|frame| screen::draw(&mut self.app, frame, &theme))?;
            let mut message = match inbox.recv_timeout(IDLE) {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            // Everything that waits is taken before the next frame: keys may come faster than a slow terminal draws.
            while let Some(next) = message {
                if self.take(next)? {
                    return Ok(());
                }
                message = inbox.try_recv().ok();
            }
        }
    }

    /// Takes a message. Returns whether it ends the display.
    fn take(&mut self, message: Message) -> Result<bool, Failure> {
        match message {
            Message::Input(Event::Key(key)) => return self.act(key),
            // The next frame has the new size.
            Message::Input(_) => {}
            Message::InputLost(error) => return Err(error.into()),
            Message::End => return Ok(true),
            Message::Snapshot(reply) => {
                if self.left == Some(0) {
                    return Ok(true);
                }
                self.left = self.left.map(|left| left - 1);
                match reply {
                    Ok(snapshot) => {
                        self.last_reply = Instant::now();
                        self.app.update(snapshot);
                    }
                    Err(error) => self.app.lost = Some(error),
                }
            }
            Message::Details(name, reply) => self.app.update_details(&name, reply),
            Message::Changed(result) => self.app.update_change(result),
        }
        Ok(false)
    }

    fn act(&mut self, key: event::KeyEvent) -> Result<bool, Failure> {
        match self.app.key(key) {
            Some(Action::Quit) => return Ok(true),
            Some(Action::Look(name)) => self.fetcher.look(name),
            Some(Action::Send(request)) => {
                let (daemon, messages) = (self.daemon.clone(), self.messages.clone());
                thread::Builder::new().name("change".to_owned()).spawn(move || {
                    let result = daemon.change(&request).map_err(Failure::into_text);
                    let _ = messages.send(Message::Changed(result));
                })?;
            }
            None => {}
        }
        Ok(false)
    }
}

/// Starts the thread that reads keys and sizes.
fn read_input(messages: Sender<Message>) -> io::Result<()> {
    thread::Builder::new().name("input".to_owned()).spawn(move || {
        loop {
            let (message, is_last) = match event::read() {
                Ok(event) => (Message::Input(event), false),
                Err(error) => (Message::InputLost(error), true),
            };
            if messages.send(message).is_err() || is_last {
                return;
            }
        }
    })?;
    Ok(())
}

/// Takes the signals which would otherwise end the process with the terminal in its changed mode, and starts the thread that waits for them.
/// They are taken when this returns, before anything changes the terminal.
fn on_signals(messages: Sender<Message>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let inside = runtime.enter();
    let mut hangup = signal(SignalKind::hangup())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut quit = signal(SignalKind::quit())?;
    let mut terminate = signal(SignalKind::terminate())?;
    drop(inside);
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = hangup.recv() => {}
                _ = interrupt.recv() => {}
                _ = quit.recv() => {}
                _ = terminate.recv() => {}
            }
        });
        let _ = messages.send(Message::End);
    })?;
    Ok(())
}
