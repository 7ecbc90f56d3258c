//! This host as a gateway of storage nodes, and as a node of gateways.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use sluice_config::{Host, NbdGateway};
use sluice_io::nbd::gateway::count::Counts;
use sluice_io::nbd::gateway::proof::Key;
use sluice_io::nbd::gateway::sessions::{Admitted, Holder, Keep, Sessions, Settings};
use sluice_io::nbd::gateway::{ProcessId, StartId};
use sluice_io::nbd::listener::Access;

use super::tls::{self, read_secret};
use crate::failure::chain;
use crate::state::folder::replace;

/// Files in the state directory: the last epoch of this gateway, and the gateways of this node's VMs.
const EPOCH: &str = "gateway-epoch";
const HOLDERS: &str = "gateways.json";
/// Permissions of both.
const MODE: u32 = 0o600;

/// This host as a gateway and as a node.
pub(super) struct Gateways {
    /// Counters of the service of its VMs over all nodes.
    pub(super) counts: Arc<Counts>,
    pub(super) access: Arc<Access>,
    process: ProcessId,
}

impl Gateways {
    /// Those of a daemon with this state directory.
    pub(super) fn of(folder: Option<PathBuf>) -> Gateways {
        let holders = folder.as_deref().map_or_else(|| Ok(BTreeMap::new()), kept);
        let keep: Arc<dyn Keep> = match &folder {
            Some(folder) => Arc::new(InFolder(folder.join(HOLDERS))),
            None => Arc::new(()),
        };
        if let Err(why) = &holders {
            tracing::error!(why, "The daemon cannot read which gateway served each VM last: it refuses all gateways");
        }
        let one_at_a_time = Mutex::new(());
        let counts = Arc::new(Counts::new(move || {
            let _alone = one_at_a_time.lock().unwrap_or_else(PoisonError::into_inner);
            next_epoch(folder.as_deref())
        }));
        let access = Arc::new(Access::new(Sessions::new(holders, keep)));
        Gateways { counts, access, process: ProcessId::random() }
    }

    /// Lets the gateways of a host file come. One whose key cannot be read has the key that it had, or is left out; all others come.
    pub(super) fn set(&self, host: &Host) {
        let before = self.access.sessions.settings();
        let admitted = host.nbd.gateways.iter().map(|(name, gateway)| match read_key(&gateway.key_file) {
            Ok(key) => {
                let NbdGateway { vms, .. } = gateway.clone();
                (name.clone(), Admitted { key: Some(Arc::new(key)), vms })
            }
            Err(why) => {
                tracing::error!(
                    gateway = name,
                    why,
                    "The daemon cannot read the key of a gateway: it uses the one that it had, or refuses the gateway"
                );
                let key = before.gateways.get(name).and_then(|before| before.key.clone());
                (name.clone(), Admitted { key, vms: gateway.vms.clone() })
            }
        });
        self.access.sessions.set(Settings { node: host.nbd.node.clone(), gateways: admitted.collect() });
        match host.nbd.tls.as_ref().map(tls::server).transpose() {
            Ok(server) => self.access.set_tls(server.map(|(server, _)| server)),
            // Clients without TLS must not come because of a file.
            Err(why) => {
                tracing::error!(
                    why,
                    "The daemon cannot read the certificate of [nbd.tls]: it uses the one that it had, or refuses clients over TCP"
                );
                self.access.require_tls();
            }
        }
    }

    /// By what this node tells gateways that a volume has lost nothing: as long as the host runs; if writes are not on the disk when they
    /// are confirmed, as long as this process does.
    pub(super) fn start_of(&self, is_direct: bool) -> StartId {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        StartId::of(&boot, (!is_direct || boot.is_empty()).then_some(&self.process))
    }
}

/// Reads a key.
///
/// # Errors
/// It cannot be read, is none, or every user of this host may read it; in words.
pub(crate) fn read_key(path: &Path) -> Result<Key, String> {
    Key::new(&read_secret(path)?).map_err(|why| format!("{}: {why}", path.display()))
}

/// Returns an epoch that is later than each before, also if the clock was set back.
fn next_epoch(folder: Option<&Path>) -> Result<u64, String> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
    let Some(path) = folder.map(|folder| folder.join(EPOCH)) else { return Ok(now) };
    let failed = |error: &dyn std::fmt::Display| {
        format!("{}: {error}; the file has a number of microseconds since 1970: write that of now", path.display())
    };
    let last: u64 = match fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().map_err(|error| failed(&error))?,
        Err(error) if error.kind() == ErrorKind::NotFound => 0,
        Err(error) => return Err(failed(&error)),
    };
    let epoch = now.max(last.saturating_add(1));
    replace(&path, format!("{epoch}\n").as_bytes(), MODE).map_err(|error| failed(&error))?;
    Ok(epoch)
}

/// The file of a node's gateways: name and epoch by VM.
struct InFolder(PathBuf);

impl Keep for InFolder {
    fn keep(&self, holders: &BTreeMap<String, Holder>) -> Result<(), String> {
        let by_vm: BTreeMap<&String, (&String, u64)> =
            holders.iter().map(|(vm, holder)| (vm, (&holder.gateway, holder.epoch))).collect();
        let text = serde_json::to_vec(&by_vm).map_err(|error| error.to_string())?;
        replace(&self.0, &text, MODE).map_err(|error| {
            tracing::error!(file = %self.0.display(), error = chain(&error), "Cannot note the gateway of a VM, and so refuse it");
            "the node cannot write its state".to_owned()
        })
    }
}

/// Reads what was kept.
///
/// # Errors
/// It is damaged, and none must come before the operator has decided; in words.
fn kept(folder: &Path) -> Result<BTreeMap<String, Holder>, String> {
    let path = folder.join(HOLDERS);
    let wrong = |error: &dyn std::fmt::Display| {
        format!(
            "{}: {error}; if no gateway but the right ones runs, remove the file and restart the daemon",
            path.display()
        )
    };
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(wrong(&error)),
    };
    let read: BTreeMap<String, (String, u64)> = serde_json::from_slice(&text).map_err(|error| wrong(&error))?;
    Ok(read.into_iter().map(|(vm, (gateway, epoch))| (vm, Holder { gateway, epoch })).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn epochs_grow_over_restarts_even_if_the_clock_was_set_back() {
        let folder = tempfile::tempdir().unwrap();
        let first = next_epoch(Some(folder.path())).unwrap();
        let later = first + 3_600_000_000;
        fs::write(folder.path().join(EPOCH), format!("{later}\n")).unwrap();
        assert_eq!(next_epoch(Some(folder.path())), Ok(later + 1));
        assert_eq!(next_epoch(Some(folder.path())), Ok(later + 2));
        fs::write(folder.path().join(EPOCH), "x").unwrap();
        assert!(next_epoch(Some(folder.path())).unwrap_err().contains("gateway-epoch"));
        assert!(next_epoch(Some(Path::new("/proc/none"))).unwrap_err().contains("/proc/none/gateway-epoch"));
    }

    #[test]
    fn a_node_remembers_the_gateways_of_its_vms() {
        let folder = tempfile::tempdir().unwrap();
        let holder = Holder { gateway: "gw1".to_owned(), epoch: 7 };
        let holders = BTreeMap::from([("db1".to_owned(), holder)]);
        InFolder(folder.path().join(HOLDERS)).keep(&holders).unwrap();
        assert_eq!(kept(folder.path()), Ok(holders));
        fs::write(folder.path().join(HOLDERS), "{").unwrap();
        assert!(kept(folder.path()).unwrap_err().contains("gateways.json"), "a damaged file is no empty one");
        assert_eq!(kept(&folder.path().join("none")), Ok(BTreeMap::new()));
    }

    #[test]
    fn a_key_that_every_user_may_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        fs::write(&path, "0123456789abcdef0123456789abcdef\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(read_key(&path).unwrap_err().contains("chmod o="));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(read_key(&path).is_ok());
        fs::write(&path, "short").unwrap();
        assert!(read_key(&path).unwrap_err().contains("openssl rand -hex 32"));
        assert!(read_key(folder.path()).is_err());
    }
}
