//! The state of the display: it gets keys and replies, and returns what is to be done.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use sluice_api::policy::Policy;
use sluice_api::top::Top;

use super::change::{Change, Step};
use super::model::{Name, Object};
use super::rows::{Row, Sort, View, rows};
use crate::control::Request;

/// Work that a key starts outside of the application.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Action {
    Quit,
    /// The details of this are wanted with each refresh; `None`: none are.
    Look(Option<Name>),
    /// A change is to be sent.
    Send(Request),
}

/// The page on the screen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Page {
    #[default]
    Table,
    Details,
}

/// A window above the page, which gets the keys.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Dialog {
    Help,
    /// The filter is edited; this is the previous one.
    Filter(String),
    Change(Change),
}

/// The state of the display.
#[derive(Debug, Default)]
pub(crate) struct App {
    pub(crate) snapshot: Top,
    /// Why there was no reply to the last request.
    pub(crate) lost: Option<String>,
    /// Seconds since the last reply.
    pub(crate) silent_seconds: u64,
    pub(crate) view: View,
    pub(crate) page: Page,
    pub(crate) dialog: Option<Dialog>,
    /// `None`: the first row.
    pub(crate) selected: Option<Name>,
    /// Index of the selected row, in case that the row is removed.
    place: usize,
    /// The first row or line shown. Drawing moves it so that the selection is visible.
    pub(crate) offset: usize,
    /// Rows that fit; drawing sets it.
    pub(crate) page_rows: usize,
    /// The reply about the selected VM or volume, on its device.
    pub(crate) details: Option<Object>,
}

impl App {
    pub(crate) fn new(view: View) -> App {
        App { view, page_rows: 1, ..App::default() }
    }

    /// Takes a reply.
    pub(crate) fn update(&mut self, snapshot: Top) {
        self.snapshot = snapshot;
        (self.lost, self.silent_seconds) = (None, 0);
        self.keep_selection();
    }

    /// Takes the reply about a VM or volume.
    pub(crate) fn update_details(&mut self, name: &Name, object: Option<Object>) {
        if self.selected.as_ref() == Some(name) {
            self.details = object;
            let policy = self.policy();
            if let Some(Dialog::Change(change)) = &mut self.dialog {
                change.set_policy(policy);
            }
        }
    }

    /// The policy of what is shown in detail, as far as it is known yet.
    fn policy(&self) -> Option<Policy> {
        self.details.as_ref().map(|details| details.served().policy.clone())
    }

    /// Takes the result of a change, or why it was refused.
    pub(crate) fn update_change(&mut self, result: Result<String, String>) {
        if let Some(Dialog::Change(change)) = &mut self.dialog {
            change.step = Step::Done(result);
        }
    }

    /// The rows as shown.
    pub(crate) fn rows(&self) -> Vec<Row<'_>> {
        rows(&self.snapshot, &self.view)
    }

    /// The index of the selected row.
    pub(crate) fn selected_row(&self, rows: &[Row<'_>]) -> usize {
        let known = self.selected.as_ref().and_then(|name| rows.iter().position(|row| row.is(name)));
        known.unwrap_or(self.place).min(rows.len().saturating_sub(1))
    }

    /// Selects a row with a name again if the selected one has gone.
    fn keep_selection(&mut self) {
        let rows = self.rows();
        let selected = self.selected_row(&rows);
        let after = rows.iter().enumerate().skip(selected).find(|(_, row)| row.name().is_some());
        let before = || rows.iter().enumerate().take(selected).rev().find(|(_, row)| row.name().is_some());
        let found = after.or_else(before).map(|(index, row)| (index, row.name()));
        match found {
            Some((index, name)) => {
                // What is shown in detail stays, even if it has gone.
                if self.page == Page::Table && self.dialog.is_none() {
                    (self.place, self.selected) = (index, name);
                }
            }
            None => self.place = 0,
        }
    }

    /// Takes a key.
    pub(crate) fn key(&mut self, key: KeyEvent) -> Option<Action> {
        if key.kind == KeyEventKind::Release {
            return None;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return matches!(key.code, KeyCode::Char('c' | 'd')).then_some(Action::Quit);
        }
        match self.dialog.take() {
            None => self.key_of_page(key.code),
            Some(Dialog::Help) => None,
            Some(Dialog::Filter(previous)) => {
                self.key_of_filter(key.code, previous);
                None
            }
            Some(Dialog::Change(change)) => self.key_of_change(key.code, change),
        }
    }

    fn key_of_page(&mut self, code: KeyCode) -> Option<Action> {
        match code {
            KeyCode::Char('q') => return Some(Action::Quit),
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.dialog = Some(Dialog::Help),
            KeyCode::Char('s') => return self.begin_change(),
            KeyCode::Down | KeyCode::Char('j') => self.move_by(1),
            KeyCode::Up | KeyCode::Char('k') => self.move_by(-1),
            KeyCode::PageDown | KeyCode::Char(' ') => self.move_by(self.page_rows as isize),
            KeyCode::PageUp => self.move_by(-(self.page_rows as isize)),
            KeyCode::Home | KeyCode::Char('g') => self.move_by(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.move_by(isize::MAX),
            code if self.page == Page::Details => return self.key_of_details(code),
            code => return self.key_of_table(code),
        }
        None
    }

    fn key_of_details(&mut self, code: KeyCode) -> Option<Action> {
        if !matches!(code, KeyCode::Esc | KeyCode::Enter | KeyCode::Backspace | KeyCode::Char('d')) {
            return None;
        }
        (self.page, self.offset, self.details) = (Page::Table, 0, None);
        self.keep_selection();
        Some(Action::Look(None))
    }

    fn key_of_table(&mut self, code: KeyCode) -> Option<Action> {
        match code {
            KeyCode::Enter | KeyCode::Char('d') => {
                let name = self.selected.clone()?;
                (self.page, self.offset, self.details) = (Page::Details, 0, None);
                return Some(Action::Look(Some(name)));
            }
            KeyCode::Char('/') => self.dialog = Some(Dialog::Filter(self.view.filter.clone())),
            KeyCode::Esc => self.view.filter.clear(),
            KeyCode::Char('t') => self.view.tree = !self.view.tree,
            KeyCode::Char('i') => self.view.reversed = !self.view.reversed,
            KeyCode::Char(letter) => {
                let sort = match letter {
                    'b' => Sort::Broken,
                    'n' => Sort::Name,
                    'r' => Sort::Rate,
                    'l' => Sort::Latency,
                    'c' => Sort::Cpu,
                    'o' => Sort::Outstanding,
                    _ => return None,
                };
                (self.view.sort, self.view.reversed) = (sort, false);
            }
            _ => return None,
        }
        self.keep_selection();
        None
    }

    /// Moves the selection, or in the details the text.
    fn move_by(&mut self, by: isize) {
        if self.page == Page::Details {
            // Drawing limits it to the length of the text.
            self.offset = self.offset.saturating_add_signed(by).min(usize::from(u16::MAX));
            return;
        }
        let rows = self.rows();
        let selectable: Vec<usize> =
            rows.iter().enumerate().filter(|(_, row)| row.name().is_some()).map(|(index, _)| index).collect();
        let now = selectable.iter().position(|index| *index >= self.selected_row(&rows)).unwrap_or(0);
        let last = selectable.len().saturating_sub(1);
        let Some(index) = selectable.get(now.saturating_add_signed(by).min(last)).copied() else { return };
        (self.place, self.selected) = (index, rows[index].name());
    }

    fn key_of_filter(&mut self, code: KeyCode, previous: String) {
        match code {
            KeyCode::Enter => {}
            KeyCode::Esc => self.view.filter = previous,
            code => {
                match code {
                    KeyCode::Char(letter) => self.view.filter.push(letter),
                    KeyCode::Backspace => drop(self.view.filter.pop()),
                    _ => {}
                }
                self.dialog = Some(Dialog::Filter(previous));
                return;
            }
        }
        self.keep_selection();
    }

    fn begin_change(&mut self) -> Option<Action> {
        let name = self.selected.clone()?;
        self.dialog = Some(Dialog::Change(Change::new(name.target(), self.policy())));
        // The values in force are shown before the change is confirmed.
        Some(Action::Look(Some(name)))
    }

    fn key_of_change(&mut self, code: KeyCode, mut change: Change) -> Option<Action> {
        match change.key(code) {
            Some(request) => {
                self.dialog = Some(Dialog::Change(change));
                Some(Action::Send(request))
            }
            None if change.step == Step::Closed => {
                if self.page == Page::Details {
                    return None;
                }
                self.details = None;
                self.keep_selection();
                Some(Action::Look(None))
            }
            None => {
                self.dialog = Some(Dialog::Change(change));
                None
            }
        }
    }
}
