//! Metrics for Prometheus, and for the textfile collector of its node exporter.
//!
//! The monitor publishes a [`State`] after each sample. It refers to the sample and copies no histogram, so publishing takes
//! neither the monitor nor a device thread long. A thread of its own answers scrapes from the last state:
//!
//! ```text
//! [monitor] --State, each second--> [Board] --> [http] thread --> GET /metrics
//!                                      '------> control socket --> `sluice metrics`
//! ```
//!
//! [`families`] lists the metrics once. The text and the table of the manual are made from that list.
//!
//! A scrape of 1,000 VMs has some 48,000 series. The text of a state is made once, however many clients ask for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use sluice_api::object::ObjectId;
use sluice_observe::reading::Reading;

use crate::space::FileSystem;
use crate::state::time::Time;

pub mod families;
pub mod http;
mod process;
mod series;
mod text;

use text::Text;

/// Everything that is exported.
#[derive(Debug, Default)]
pub struct State {
    pub reading: Reading,
    /// Volumes that are held back, and those that are out of service.
    pub held_back: usize,
    pub out_of_service: usize,
    /// Interfaces that are out of service.
    pub outages: BTreeSet<ObjectId>,
    /// The last attempt to load the host file.
    pub load: Load,
    /// File systems of images.
    pub file_systems: Vec<FileSystem>,
    /// Sessions of VMMs, without the first of each socket, by VM and volume. Sockets without a second session are left out.
    pub reconnects: BTreeMap<ObjectId, u64>,
}

/// An attempt to load the host file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    pub is_in_force: bool,
    pub at: Time,
}

impl Load {
    pub fn now(is_in_force: bool) -> Load {
        Load { is_in_force, at: Time::of_clock() }
    }
}

/// The start, which loads the file with success.
impl Default for Load {
    fn default() -> Self {
        Load::now(true)
    }
}

/// The last state, from the monitor for the threads that export it.
#[derive(Debug, Clone, Default)]
pub struct Board(Arc<Mutex<Last>>);

#[derive(Debug, Default)]
struct Last {
    state: Arc<State>,
    /// The text of `state`, once it was asked for.
    text: Option<Arc<Text>>,
}

impl Board {
    /// Replaces the state.
    pub fn publish(&self, state: State) {
        let next = Last { state: Arc::new(state), text: None };
        // Freed after the lock is given back.
        let last = std::mem::replace(&mut *self.lock(), next);
        drop(last);
    }

    /// Returns the metrics of the last state.
    pub fn text(&self) -> Arc<Text> {
        let state = {
            let last = self.lock();
            if let Some(text) = &last.text {
                return Arc::clone(text);
            }
            Arc::clone(&last.state)
        };
        // Not under the lock: the monitor must not wait for it.
        let text = Arc::new(Text::of(Arc::clone(&state)));
        let mut last = self.lock();
        if Arc::ptr_eq(&last.state, &state) {
            last.text = Some(Arc::clone(&text));
        }
        text
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Last> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
