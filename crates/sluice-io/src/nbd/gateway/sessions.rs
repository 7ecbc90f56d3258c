//! Which gateway serves a VM at this node: one, and that of the newest epoch.
//!
//! A gateway that was cut off may wake up after another one has taken its VM over. What it still sends must not reach the VM's disks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::proof::{Key, nonce};
use super::{Admission, Challenge, Hello, Known, StartId};
use crate::device::NbdHandle;

/// How far the clock of a gateway may be ahead. An epoch of the far future would shut out every later one.
const AHEAD_MAX: Duration = Duration::from_secs(3600);

/// A gateway that may come.
#[derive(Debug, Clone)]
pub struct Admitted {
    /// `None`: it cannot be read, and the gateway cannot come. That it was the last one to serve a VM counts nevertheless.
    pub key: Option<Arc<Key>>,
    /// Names of its VMs; `*` stands for all.
    pub vms: Vec<String>,
}

impl Admitted {
    fn has_key(&self, key: &Key) -> bool {
        self.key.as_ref().is_some_and(|known| known.is_same(key))
    }

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
    /// Returns when they are kept. May block.
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
    /// One gateway takes a VM over at a time.
    changing: Arc<tokio::sync::Mutex<()>>,
    keep: Arc<dyn Keep>,
}

struct State {
    settings: Settings,
    /// By VM; if what was kept cannot be read, why not.
    holders: Result<BTreeMap<String, Holder>, String>,
    /// Devices with sessions of a VM.
    devices: BTreeMap<String, Vec<NbdHandle>>,
}

impl Default for Sessions {
    fn default() -> Self {
        Sessions::new(Ok(BTreeMap::new()), Arc::new(()))
    }
}

impl Settings {
    fn admits(&self, gateway: &str, vm: &str) -> Option<&Admitted> {
        self.gateways.get(gateway).filter(|admitted| admitted.may_serve(vm))
    }
}

impl State {
    /// Whether a gateway takes a VM over, and does not serve it already.
    ///
    /// # Errors
    /// It may not, for it.
    fn judge(&self, hello: &Hello, vm: &str, key: &Key) -> Result<bool, String> {
        let Hello { gateway, epoch, .. } = hello;
        let holders =
            self.holders.as_ref().map_err(|why| format!("the node does not know which gateway was the last: {why}"))?;
        if !self.settings.admits(gateway, vm).is_some_and(|admitted| admitted.has_key(key)) {
            return Err(format!("[nbd.gateway.{gateway}] has changed: connect again"));
        }
        let ahead = Duration::from_micros(*epoch).saturating_sub(since_1970());
        if ahead > AHEAD_MAX {
            return Err(format!(
                "the clock of gateway {gateway} is {} s ahead of the node's: set the clocks",
                ahead.as_secs()
            ));
        }
        // One that may not serve the VM any more does not count.
        match holders.get(vm).filter(|holder| self.settings.admits(&holder.gateway, vm).is_some()) {
            Some(holder) if holder.gateway == *gateway && holder.epoch == *epoch => Ok(false),
            Some(holder) if holder.epoch >= *epoch => Err(format!(
                "gateway {} has taken VM {vm} over, {} s after this one: remove the VM from one of the two, or if the clocks differ, set them and restart the right one",
                holder.gateway,
                (holder.epoch - epoch) / 1_000_000
            )),
            _ => Ok(true),
        }
    }
}

impl Sessions {
    /// No gateway may come yet. `holders` is what was kept, or why that is not known.
    #[must_use]
    pub fn new(holders: Result<BTreeMap<String, Holder>, String>, keep: Arc<dyn Keep>) -> Self {
        Sessions {
            state: Mutex::new(State { settings: Settings::default(), holders, devices: BTreeMap::new() }),
            changing: Arc::default(),
            keep,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets these gateways come. The sessions of others end, and those of gateways with another key than before.
    pub fn set(&self, settings: Settings) {
        let mut state = self.state();
        let State { settings: before, holders, devices } = &mut *state;
        devices.retain(|vm, devices| {
            let holder = holders.as_ref().ok().and_then(|holders| holders.get(vm));
            let admitted = holder
                .and_then(|holder| Some((before.admits(&holder.gateway, vm)?, settings.admits(&holder.gateway, vm)?)));
            let stays = admitted.is_some_and(|(before, now)| before.key.as_ref().is_none_or(|key| now.has_key(key)));
            if !stays {
                devices.iter().for_each(|device| device.end_gateways(vm, None));
            }
            stays
        });
        *before = settings;
    }

    /// The gateways that may come.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.state().settings.clone()
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
    ) -> Result<Admission, Option<String>> {
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
        let key =
            admitted.key.clone().ok_or_else(|| format!("the node cannot read the key of [nbd.gateway.{name}]"))?;
        let nonce = nonce().map_err(|error| error.to_string())?;
        let challenge = Challenge { node: node.clone(), device: device.to_owned(), nonce, start };
        Ok(Admission { key, challenge, vm: vm.to_owned() })
    }

    /// Makes a gateway that has proven that it has `key` the one of a VM. The sessions of earlier ones end before requests of this one are
    /// read.
    ///
    /// # Errors
    /// It may not come any more, a newer one holds, or it cannot be kept that this one does; for the gateway.
    pub(crate) async fn admit(&self, hello: &Hello, vm: &str, key: &Key) -> Result<(), String> {
        let alone = Arc::clone(&self.changing).lock_owned().await;
        let kept = {
            let state = self.state();
            let mut holders = if state.judge(hello, vm, key)? { state.holders.clone()? } else { return Ok(()) };
            holders.insert(vm.to_owned(), Holder { gateway: hello.gateway.clone(), epoch: hello.epoch });
            holders
        };
        let keep = Arc::clone(&self.keep);
        // Another one waits until this is written, also if this handshake is over before.
        let writing = tokio::task::spawn_blocking(move || (keep.keep(&kept).map(|()| kept), alone));
        let (kept, _alone) = writing.await.map_err(|_| "the node cannot write its state".to_owned())?;
        let kept = kept?;
        let mut state = self.state();
        // It may have been removed meanwhile.
        state.judge(hello, vm, key)?;
        state.holders = Ok(kept);
        let devices = state.devices.remove(vm).unwrap_or_default();
        devices.iter().for_each(|device| device.end_gateways(vm, Some(hello.epoch)));
        tracing::info!(vm, gateway = hello.gateway, epoch = hello.epoch, "A gateway serves a VM");
        Ok(())
    }

    /// Hands the session of a gateway to the device of its export, unless the gateway may not come any more or another one has.
    pub(crate) fn attach(&self, known: &Known, device: &NbdHandle, attach: impl FnOnce()) {
        let (vm, gateway) = (&known.vm.0, &known.gateway);
        let mut state = self.state();
        let holder = state.holders.as_ref().ok().and_then(|holders| holders.get(vm));
        let holds = holder.is_some_and(|holder| holder.gateway == *gateway && holder.epoch == known.epoch);
        if !holds || state.settings.admits(gateway, vm).is_none() {
            return tracing::info!(vm, gateway, "Client disconnected: its gateway does not serve the VM any more");
        }
        // While the lock is held: what ends sessions comes after it.
        attach();
        let devices = state.devices.entry(vm.clone()).or_default();
        if !devices.iter().any(|known| known.is_same(device)) {
            devices.push(device.clone());
        }
    }
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
