//! `sluice check --host` as the user of the daemon: what root may open says nothing about a daemon that is not root.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Rights of a service.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Rights {
    pub(super) user: String,
    /// Its group; empty: that of the user.
    pub(super) group: String,
    /// Groups besides those of the user.
    pub(super) groups: Vec<String>,
    /// Capabilities, as `setpriv` has them.
    pub(super) capabilities: Vec<String>,
}

impl Rights {
    /// Rights of the unit of this host, if it names a user other than root.
    pub(super) fn of_unit() -> Option<Rights> {
        let mut systemctl = Command::new("systemctl");
        systemctl.args(["show", "--property=User,Group,SupplementaryGroups,AmbientCapabilities", "sluice.service"]);
        let output = systemctl.output().ok()?;
        Rights::parse(&String::from_utf8_lossy(&output.stdout))
    }

    fn parse(properties: &str) -> Option<Rights> {
        let value = |name: &str| {
            let mut lines = properties.lines().filter_map(|line| line.split_once('='));
            lines.find(|(key, _)| *key == name).map_or("", |(_, value)| value)
        };
        let words = |name: &str| value(name).split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let capabilities = words("AmbientCapabilities").iter().map(|name| name.replacen("cap_", "+", 1)).collect();
        let (user, group) = (value("User").to_owned(), value("Group").to_owned());
        let is_other = !["", "root", "0"].contains(&user.as_str());
        is_other.then(|| Rights { user, group, groups: words("SupplementaryGroups"), capabilities })
    }

    /// Runs this command again with these rights, in this process. Returns only if that fails.
    pub(super) fn exec(&self) -> io::Result<()> {
        let program = std::env::current_exe()?;
        let mut setpriv = Command::new("setpriv");
        setpriv.args(self.arguments()).arg("--").arg(program).args(std::env::args_os().skip(1));
        Err(setpriv.exec())
    }

    fn arguments(&self) -> Vec<String> {
        let of_user = |option: &str| {
            let output = Command::new("id").args([option, &self.user]).output();
            output.map_or_else(|_| String::new(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        let group = if self.group.is_empty() { of_user("-g") } else { self.group.clone() };
        let groups: Vec<String> =
            of_user("-G").split_whitespace().map(str::to_owned).chain(self.groups.iter().cloned()).collect();
        let capabilities = ["-all".to_owned()].iter().chain(&self.capabilities).cloned().collect::<Vec<_>>().join(",");
        vec![
            format!("--reuid={}", self.user),
            format!("--regid={group}"),
            format!("--groups={}", groups.join(",")),
            format!("--inh-caps={capabilities}"),
            format!("--ambient-caps={capabilities}"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_of_root_needs_no_other_user() {
        assert_eq!(Rights::parse("User=\nGroup=\n"), None);
        assert_eq!(Rights::parse("User=root\n"), None);
        let found = Rights::parse(
            "User=sluice\nGroup=vms\nSupplementaryGroups=kvm disks\nAmbientCapabilities=cap_net_admin cap_net_raw\n",
        );
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let expected = Rights {
            user: "sluice".to_owned(),
            group: "vms".to_owned(),
            groups: words(&["kvm", "disks"]),
            capabilities: words(&["+net_admin", "+net_raw"]),
        };
        assert_eq!(found.unwrap(), expected);
        let arguments = expected.arguments();
        assert_eq!(arguments[1], "--regid=vms");
        assert!(arguments[2].ends_with("kvm,disks"), "{arguments:?}");
        assert_eq!(arguments[4], "--ambient-caps=-all,+net_admin,+net_raw");
    }
}
