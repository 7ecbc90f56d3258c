//! A change of a policy: it is typed in, shown next to what is in force, confirmed, and sent.

use ratatui::crossterm::event::KeyCode;
use serde_json::Value;
use sluice_api::policy::Policy;

use crate::control::{How, Request, Term, keys};
use crate::show::NOTHING;

/// Progress of a change.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    /// `KEY=VALUE` is typed in; `None` or what is wrong with it.
    Edit(Option<String>),
    /// It waits for `y`.
    Confirm,
    /// It waits for the daemon.
    Sent,
    /// The result, or the reason for a refusal.
    Done(Result<String, String>),
    Closed,
}

/// A change of a policy.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Change {
    /// VM or VM/VOLUME.
    pub(crate) target: String,
    /// The text as typed in.
    pub(crate) text: String,
    pub(crate) until_restart: bool,
    pub(crate) step: Step,
    policy: Option<Box<Policy>>,
}

impl Change {
    /// `policy` is in force, as far as it is known yet.
    pub(crate) fn new(target: String, policy: Option<Policy>) -> Change {
        Change {
            target,
            text: String::new(),
            until_restart: false,
            step: Step::Edit(None),
            policy: policy.map(Box::new),
        }
    }

    /// Takes the policy that is in force. Once the change is sent, the reply says what it was.
    pub(crate) fn set_policy(&mut self, policy: Option<Policy>) {
        self.policy = policy.map(Box::new);
    }

    /// Takes a key. Returns the request if it was confirmed.
    pub(crate) fn key(&mut self, code: KeyCode) -> Option<Request> {
        match &self.step {
            Step::Edit(_) => self.key_of_edit(code),
            Step::Confirm => match code {
                KeyCode::Char('y' | 'Y') => {
                    self.step = Step::Sent;
                    return self.request().ok();
                }
                KeyCode::Tab => self.until_restart = !self.until_restart,
                KeyCode::Char('n' | 'N') | KeyCode::Esc => self.step = Step::Edit(None),
                _ => {}
            },
            // What was sent cannot be taken back by closing this.
            Step::Sent if code != KeyCode::Esc => {}
            Step::Done(Err(error)) if code == KeyCode::Enter => self.step = Step::Edit(Some(first_line(error))),
            Step::Sent | Step::Done(_) | Step::Closed => self.step = Step::Closed,
        }
        None
    }

    fn key_of_edit(&mut self, code: KeyCode) {
        match code {
            KeyCode::Esc => self.step = Step::Closed,
            KeyCode::Tab => self.until_restart = !self.until_restart,
            KeyCode::Enter => {
                self.step = self.request().map_or_else(|error| Step::Edit(Some(error)), |_| Step::Confirm)
            }
            KeyCode::Backspace => drop(self.text.pop()),
            KeyCode::Char(letter) => self.text.push(letter),
            _ => {}
        }
    }

    fn request(&self) -> Result<Request, String> {
        let keys = keys::table(vec![keys::parse(self.text.trim())?])?;
        let term = if self.until_restart { Term::UntilRestart } else { Term::Always };
        let how = How { term, ..How::default() };
        Ok(Request::Set { target: self.target.clone(), keys, reset: Vec::new(), how })
    }

    /// The values in force of what the key changes, by name: `limit` has `limit_iops` and `limit_bytes_per_second`.
    pub(crate) fn in_force(&self) -> Vec<(String, String)> {
        let key = self.text.split(['=', '.']).next().unwrap_or_default().trim();
        let fields = self.policy.as_ref().map_or_else(Vec::new, sluice_api::fields);
        let of_key = fields.into_iter().filter(|(name, _)| !key.is_empty() && name.starts_with(key));
        let shown = |value: Value| match value {
            Value::Null => NOTHING.to_owned(),
            Value::String(text) => text,
            other => other.to_string(),
        };
        of_key.map(|(name, value)| (name, shown(value))).collect()
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}
