//! What a change may not name in a sealed daemon.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use sluice_config::{Host, Layer};

use super::look::Right;
use super::{Jail, NOT_WITH_CEPH};
use crate::reach::Reach;

impl Jail {
    /// Why this host cannot be served before a restart; `None` if it can.
    pub(super) fn refuses(&self, host: &Host) -> Option<String> {
        let (then, now) = (&self.reach, Reach::of(host));
        let mut new: BTreeSet<String> = BTreeSet::new();
        if self.is_in_force(Layer::Landlock) {
            new.extend(self.folders(&now).iter().map(|path| format!("the folder {}", path.display())));
        }
        new.extend(self.sockets(&now).map(|path| format!("the folder {}", path.display())));
        new.extend(now.programs.difference(&then.programs).map(|path| format!("the program {}", path.display())));
        new.extend(now.webhooks.difference(&then.webhooks).map(|_| "the webhook".to_owned()));
        new.extend(now.nodes.difference(&then.nodes).map(|node| format!("the server {node}")));
        new.extend(now.places.difference(&then.places).map(|place| format!("the meeting place {place}")));
        if NOT_WITH_CEPH.iter().any(|layer| self.is_in_force(*layer)) {
            new.extend(now.pools.difference(&then.pools).map(|pool| format!("the pool {pool}")));
            new.extend(now.addresses.difference(&then.addresses).map(|address| format!("the address {address}")));
        }
        if self.is_in_force(Layer::Seccomp) && (now.links || now.taps) && !(then.links || then.taps) {
            new.insert("the uplink".to_owned());
        }
        let names: Vec<String> = new.into_iter().collect();
        (!names.is_empty()).then(|| {
            format!(
                "The daemon has sealed itself to what the host file named when it started, and this was not in it: {}. Restart the daemon, \
                 which reads the file again; VMs reconnect",
                names.join(", ")
            )
        })
    }

    /// Folders that a host names, and neither the host file at the start did nor a rule covers.
    fn folders(&self, now: &Reach) -> BTreeSet<PathBuf> {
        let rules = self.rules.iter().map(|rule| (rule.path.clone(), rule.right));
        let known: Vec<(PathBuf, Right)> = folders(&self.reach).into_iter().chain(rules).collect();
        let is_known = |folder: &Path, wanted: Right| {
            let is_enough = |right: Right| wanted == Right::Read || right != Right::Read;
            known.iter().any(|(root, right)| folder.starts_with(root) && is_enough(*right))
        };
        folders(now).into_iter().filter(|(folder, right)| !is_known(folder, *right)).map(|(folder, _)| folder).collect()
    }

    /// Folders with sockets of VMs that the launcher does not know.
    fn sockets<'a>(&self, now: &'a Reach) -> impl Iterator<Item = &'a PathBuf> {
        let known: BTreeSet<PathBuf> = self.reach.source_folders().union(&self.reach.sockets).cloned().collect();
        now.sockets.iter().filter(move |folder| !known.iter().any(|root| folder.starts_with(root)))
    }
}

/// Folders of images and disks, and what is done there.
fn folders(reach: &Reach) -> Vec<(PathBuf, Right)> {
    let right = |is_read: bool| if is_read { Right::Read } else { Right::Write };
    let sources = reach.sources.iter().map(|(source, is_read)| (source, right(*is_read)));
    // A file or folder that says which disk a device is, is not opened.
    let is_opened = |disk: &&PathBuf| disk.starts_with("/dev") || disk.to_string_lossy().contains('*');
    let disks = reach.disks.iter().filter(is_opened).map(|disk| (disk, Right::Device));
    let keys = reach.keys.iter().map(|key| (key, Right::Read));
    let parents = sources.chain(disks).chain(keys).filter_map(|(path, right)| Some((path.parent()?.to_owned(), right)));
    parents.chain(reach.folders.iter().map(|folder| (folder.clone(), Right::Write))).collect()
}

#[cfg(test)]
mod tests {
    use sluice_config::parse;

    use super::super::Standing;
    use super::super::look::Rule;
    use super::*;

    const HOST: &str = "[device.d]\npath = \"/srv/d\"\n[vm.a.volume.v]\ndevice = \"d\"\nsource = \"/srv/vm/a\"\n\
                        export = { socket = \"/run/vm/a\" }\n";

    fn host(text: &str) -> Host {
        parse("host.toml", text).unwrap_or_else(|errors| panic!("{errors}"))
    }

    fn sealed(text: &str) -> Jail {
        let layers = Layer::ALL.into_iter().map(|layer| (layer, Standing::InForce(None))).collect();
        let rule = |path: &str, right| Rule { path: path.into(), right, is_folder: true };
        let rules = vec![rule("/srv/vm", Right::Write), rule("/iso", Right::Read)];
        Jail { layers, reach: Reach::of(&host(text)), rules, ..Jail::default() }
    }

    #[test]
    fn what_the_host_file_did_not_name_needs_a_restart() {
        let jail = sealed(HOST);
        let refused = |text: String| jail.refuses(&host(&text));
        assert_eq!(refused(HOST.to_owned()), None);
        assert_eq!(refused(HOST.replace("/srv/vm/a", "/srv/vm/new/b").replace("/run/vm/a", "/run/vm/b")), None);
        for (more, what) in [
            ("[alert.all]\ncommand = \"/bin/tell\"\n", "the program /bin/tell"),
            ("[alert.all]\nwebhook = \"https://hook\"\n", "the webhook"),
            ("[nbd]\nlisten = \"127.0.0.1:10809\"\n", "the address 127.0.0.1:10809"),
            ("[nbd]\nsocket = \"/other/nbd\"\n", "the folder /other"),
            ("[uplink.u]\nnic = \"eth0\"\nrate = \"1Gbit/s\"\n", "the uplink"),
            ("[daemon]\nsource_root = \"/srv\"\n", "the folder /srv."),
            ("[device.c]\npath = \"rbd:vms\"\n", "the pool rbd:vms"),
        ] {
            let text = refused(format!("{HOST}{more}")).unwrap_or_else(|| panic!("{more}"));
            assert!(text.contains(what) && text.contains("Restart the daemon"), "{text}");
        }
        let iso = HOST.replace("/srv/vm/a", "/iso/a");
        assert!(refused(iso.clone()).unwrap().contains("the folder /iso."), "it may only be read");
        assert_eq!(refused(iso.replace("export", "read_only = true\nexport")), None);
        let elsewhere = refused(HOST.replace("/srv/vm/a", "/data/a")).unwrap();
        assert!(elsewhere.contains("the folder /data."), "{elsewhere}");
    }
}
