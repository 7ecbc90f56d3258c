//! Which gateway serves a VM at this node: one, and that of the newest epoch.
//!
//! A gateway that was cut off may wake up after another one has taken its VM over. What it still sends must not reach the VM's disks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::proof::{Key, nonce};
use super::{Challenge, Door, Hello, StartId};
use crate::device::NbdHandle;

/// A gateway that may come.
#[derive(Debug, Clone)]
pub struct Admitted {
    pub key: Arc<Key>,
    /// Names of its VMs; `*` stands for all.
    pub vms: Vec<String>,
}

impl Admitted {
    fn may_serve(&self, vm: &str) -> bool {
        self.vms.iter().any(|known| known == "*" || known == vm)
    }
}

/// This node, as its gateways see it.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Name of the node.
    pub node: String,
    /// By name.
    pub gateways: BTreeMap<String, Admitted>,
}

/// The gateway of a VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub gateway: String,
    pub epoch: u64,
}

/// Keeps the newest epochs where a restart does not lose them.
pub trait Keep: Send + Sync {
    /// Returns when they are kept.
    ///
    /// # Errors
    /// They cannot be kept; in words.
    fn keep(&self, holders: &BTreeMap<String, Holder>) -> Result<(), String>;
}

/// Keeps them in memory alone.
impl Keep for () {
    fn keep(&self, _: &BTreeMap<String, Holder>) -> Result<(), String> {
        Ok(())
    }
}

/// The gateways of a node, which all its sockets share.
pub struct Sessions {
    state: Mutex<State>,
    keep: Box<dyn Keep>,
}

#[derive(Default)]
struct State {
    settings: Settings,
    /// By VM.
    holders: BTreeMap<String, Holder>,
    /// Devices with sessions of a VM.
    devices: BTreeMap<String, Vec<NbdHandle>>,
}

impl Default for Sessions {
    fn default() -> Self {
        Sessions::new(BTreeMap::new(), Box::new(()))
    }
}

impl Sessions {
    /// No gateway may come yet. `holders` is what was kept.
    #[must_use]
    pub fn new(holders: BTreeMap<String, Holder>, keep: Box<dyn Keep>) -> Self {
        Sessions { state: Mutex::new(State { holders, ..State::default() }), keep }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets these gateways come, and ends the sessions of others.
    pub fn set(&self, settings: Settings) {
        let mut state = self.state();
        let State { holders, devices, .. } = &mut *state;
        let may = |vm: &String, holder: &Holder| {
            settings.gateways.get(&holder.gateway).is_some_and(|gateway| gateway.may_serve(vm))
        };
        devices.retain(|vm, devices| {
            let stays = holders.get(vm).is_some_and(|holder| may(vm, holder));
            if !stays {
                devices.iter().for_each(|device| device.end_gateways(vm, None));
            }
            stays
        });
        state.settings = settings;
    }

    /// Answers a gateway that asks for an export of `vm` on `device`.
    ///
    /// # Errors
    /// Why it may not come, for it; `None` if the node has no gateways.
    pub(crate) fn challenge(
        &self,
        hello: &Hello,
        vm: &str,
        device: &str,
        start: StartId,
    ) -> Result<Door, Option<String>> {
        let state = self.state();
        let Settings { node, gateways } = &state.settings;
        if gateways.is_empty() {
            return Err(None);
        }
        let name = &hello.gateway;
        let unknown = || format!("this server knows no gateway {name}: add [nbd.gateway.{name}] there");
        let admitted = gateways.get(name).ok_or_else(unknown)?;
        if let Some(other) = hello.vms.iter().find(|vm| !admitted.may_serve(vm)) {
            return Err(Some(format!("VM {other} is not among the vms of [nbd.gateway.{name}]")));
        }
        if !hello.vms.iter().any(|listed| listed == vm) {
            return Err(Some(format!("the export belongs to VM {vm}, which the gateway does not name")));
        }
        let nonce = nonce().map_err(|error| error.to_string())?;
        let challenge = Challenge { node: node.clone(), device: device.to_owned(), nonce, start };
        Ok(Door { key: Arc::clone(&admitted.key), challenge, vm: vm.to_owned() })
    }

    /// Makes a gateway that has proven its key the one of a VM. The sessions of earlier ones end before requests of this one are read.
    ///
    /// # Errors
    /// A newer one holds, or it cannot be kept that this one does; for the gateway.
    pub(crate) fn admit(&self, hello: &Hello, vm: &str, device: &NbdHandle) -> Result<(), String> {
        let mut state = self.state();
        let new = Holder { gateway: hello.gateway.clone(), epoch: hello.epoch };
        match state.holders.get(vm) {
            Some(holder) if *holder == new => {}
            Some(holder) if holder.epoch >= new.epoch => {
                let (gateway, microseconds) = (&holder.gateway, holder.epoch - new.epoch);
                return Err(format!(
                    "gateway {gateway} has taken VM {vm} over, {} s after this one: remove the VM from one of the two",
                    microseconds / 1_000_000
                ));
            }
            _ => {
                let mut holders = state.holders.clone();
                holders.insert(vm.to_owned(), new.clone());
                self.keep.keep(&holders)?;
                state.holders = holders;
                let devices = state.devices.remove(vm).unwrap_or_default();
                devices.iter().for_each(|device| device.end_gateways(vm, Some(new.epoch)));
            }
        }
        let devices = state.devices.entry(vm.to_owned()).or_default();
        if !devices.iter().any(|known| known.is_same(device)) {
            devices.push(device.clone());
        }
        Ok(())
    }
}
