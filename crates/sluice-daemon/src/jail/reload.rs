//! What a change may not name in a sealed daemon.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use sluice_config::{Host, Layer};

use super::Jail;
use super::look::Right;
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
        new.extend(now.places.difference(&then.places).map(|path| format!("the meeting place {}", path.display())));
        if self.is_in_force(Layer::Landlock) || self.is_in_force(Layer::Seccomp) {
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

    /// Folders that a host names for the first time, and no rule covers.
    fn folders(&self, now: &Reach) -> BTreeSet<PathBuf> {
        let then = &self.reach;
        // A file or folder that says which disk a device is, is not opened.
        let is_opened = |disk: &&PathBuf| disk.starts_with("/dev") || disk.to_string_lossy().contains('*');
        let sources =
            now.sources.iter().filter(|(source, is_read)| then.sources.get(*source).is_none_or(|old| old != *is_read));
        let sources = sources.map(|(source, is_read)| (source, if *is_read { Right::Read } else { Right::Write }));
        let disks = now.disks.difference(&then.disks).filter(is_opened).map(|disk| (disk, Right::Read));
        let named = sources.chain(disks).filter_map(|(path, right)| Some((path.parent()?, right)));
        let folders = now.folders.difference(&then.folders).map(|folder| (folder.as_path(), Right::Write));
        let uncovered = named.chain(folders).filter(|(folder, right)| !self.covers(folder, *right));
        uncovered.map(|(folder, _)| folder.to_owned()).collect()
    }

    fn covers(&self, folder: &Path, wanted: Right) -> bool {
        let is_enough = |right: Right| wanted == Right::Read || right != Right::Read;
        self.rules.iter().any(|rule| folder.starts_with(&rule.path) && is_enough(rule.right))
    }

    /// Folders with sockets of VMs that the launcher does not know.
    fn sockets<'a>(&self, now: &'a Reach) -> impl Iterator<Item = &'a PathBuf> {
        now.sockets.iter().filter(|folder| !self.reach.sockets.iter().any(|root| folder.starts_with(root)))
    }
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
