//! Roles of the clients of the control socket, by the user and the groups that the kernel states.
//!
//! | role | may |
//! |---|---|
//! | observe | read the daemon's state |
//! | change | also change policies, take such changes back, and send test alerts |
//! | attach | also attach, detach and resize volumes, and set their other keys |
//! | admin | everything: root and the daemon's own user |
//!
//! Each role includes those before it. A program that attaches volumes acts for others and passes on names that they chose. So
//! its sources must be in `source_root` (`sluice-config` checks that), and its sockets where and for whom the host file allows.
//!
//! Names are resolved when a file is loaded, by a thread that may wait for the host's user database.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use sluice_api::request::Names;
use sluice_config::fields::{CPU_KEY, POLICY_KEYS};
use sluice_config::{Access, Account, DaemonSettings};
use sluice_io::users;

use super::Request;
use super::socket::{Group, Peer};
use crate::state::overrides::{Change, Overrides, flat};

/// File that says where users and groups are looked up: in files, or at a server that may not respond.
pub const LOOKUP: &str = "/etc/nsswitch.conf";

/// A role; later ones include earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    Observe,
    Change,
    Attach,
    Admin,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::Observe => "observe",
            Role::Change => "change",
            Role::Attach => "attach",
            Role::Admin => "admin",
        }
    }
}

/// The accounts that have each role, by number.
#[derive(Debug, Clone)]
pub struct Roles {
    /// The accounts with attach, change and observe, in this order.
    granted: [(Role, Vec<Number>); 3],
    /// Group of the control socket; `None` without one.
    pub group: Option<Group>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Number {
    User(u32),
    Group(u32),
}

impl Roles {
    /// Resolves the names of accounts, which may take as long as the host's user database. An account that does not exist has
    /// no role, and is logged. `group` owns the control socket.
    pub fn of(access: &Access, group: Option<Group>) -> Roles {
        let observe = match &access.observe {
            Some(accounts) => numbers(Role::Observe, accounts),
            None => group.into_iter().map(Number::Group).collect(),
        };
        let (change, attach) = (numbers(Role::Change, &access.change), numbers(Role::Attach, &access.attach));
        Roles { granted: [(Role::Attach, attach), (Role::Change, change), (Role::Observe, observe)], group }
    }

    /// The name of the role that a client has.
    pub fn name_of(&self, peer: &Peer) -> Option<&'static str> {
        self.role_of(peer).map(Role::name)
    }

    fn role_of(&self, peer: &Peer) -> Option<Role> {
        if peer.is_admin() {
            return Some(Role::Admin);
        }
        let is = |number: &Number| match *number {
            Number::User(uid) => uid == peer.uid,
            Number::Group(gid) => gid == peer.gid || peer.groups.contains(&gid),
        };
        self.granted.iter().find(|(_, numbers)| numbers.iter().any(is)).map(|(role, _)| *role)
    }
}

fn numbers(role: Role, accounts: &[Account]) -> Vec<Number> {
    let number = |account: &Account| {
        let number = number(account);
        if number.is_none() {
            let ((kind, name), role) = (kind_and_name(account), role.name());
            tracing::warn!(
                role,
                kind,
                name,
                "Account in [daemon.access] does not exist on this host and gets no role: create it, or correct its name"
            );
        }
        number
    };
    accounts.iter().filter_map(number).collect()
}

fn number(account: &Account) -> Option<Number> {
    match account {
        Account::User(name) => users::user(name).map(Number::User),
        Account::Group(name) => users::group(name).map(Number::Group),
    }
}

fn kind_and_name(account: &Account) -> (&'static str, &str) {
    match account {
        Account::User(name) => ("user", name),
        Account::Group(name) => ("group", name),
    }
}

/// Returns the accounts with a role that do not exist on this host, in words.
pub fn missing(access: &Access) -> Vec<String> {
    let granted = [
        (Role::Observe, access.observe.as_deref()),
        (Role::Change, Some(access.change.as_slice())),
        (Role::Attach, Some(access.attach.as_slice())),
    ];
    let all = granted
        .into_iter()
        .flat_map(|(role, accounts)| accounts.unwrap_or_default().iter().map(move |account| (role, account)));
    let missing = all.filter(|(_, account)| number(account).is_none()).map(|(role, account)| {
        let (kind, name) = kind_and_name(account);
        format!("{kind} {name} does not exist on this host, so it does not have the role {}", role.name())
    });
    missing.collect()
}

/// Rights of the clients of the control socket.
pub struct Rights<'a> {
    pub roles: &'a Roles,
    pub settings: &'a DaemonSettings,
    /// The host file, for messages.
    pub file: &'a Path,
}

impl Rights<'_> {
    /// Checks whether a client may make a request. The error says why not, and how to allow it.
    pub fn check(&self, request: &Request, peer: &Peer, overrides: &Overrides) -> Result<(), String> {
        let (has, needs) = (self.roles.role_of(peer), needed(request, overrides));
        if has < Some(needs) {
            return Err(self.lacks(peer, has, needs));
        }
        match request {
            _ if has == Some(Role::Admin) => Ok(()),
            Request::Attach { keys, vm, .. } => match vm.keys().find(|key| !is_policy(key)) {
                Some(key) => Err(other_volume(key)),
                None => self.check_keys(keys, true),
            },
            Request::Set { keys, .. } => self.check_keys(keys, false),
            _ => Ok(()),
        }
    }

    fn lacks(&self, peer: &Peer, has: Option<Role>, needs: Role) -> String {
        let has = has.map_or_else(|| "no role".to_owned(), |role| format!("the role {}", role.name()));
        let (uid, file) = (peer.uid, self.file.display());
        match needs {
            Role::Admin => format!(
                "This command is only for root and the daemon's own user, and uid {uid} has {has}; run it as root, for example \
                 with sudo"
            ),
            _ => format!(
                "This command needs the role {needs}, and uid {uid} has {has}; to give it, add \"user:{uid}\" or one of its \
                 groups to {needs} in [daemon.access] of {file}, and run `sluice apply {file}` as root",
                needs = needs.name()
            ),
        }
    }

    /// Checks the keys of a client with the role attach. That sources are in the folder is checked with the whole
    /// configuration. `is_new`: the volume is attached, so keys that are missing have their defaults.
    fn check_keys(&self, keys: &toml::Table, is_new: bool) -> Result<(), String> {
        // Keys of inner tables, and keys with dots in their names, are the same to the rest of the daemon.
        let keys: BTreeMap<String, toml::Value> = flat(keys.clone()).into_iter().collect();
        let is_inner = |key: &&String| ["volume", "nic"].contains(&key.split('.').next().unwrap_or(key));
        if let Some(key) = keys.keys().find(is_inner) {
            return Err(other_volume(key));
        }
        if keys.contains_key("source") && self.settings.source_root.is_none() {
            return Err(format!(
                "With the role attach a source can only be named if source_root is stated in [daemon] of {}; set it to the \
                 folder of the images",
                self.file.display()
            ));
        }
        if let Some(key) = ADMIN_KEYS.into_iter().find(|key| keys.contains_key(*key)) {
            return Err(format!(
                "{key} cannot be set with the role attach, because it affects more than the VM; state it in {}",
                self.file.display()
            ));
        }
        // A volume has them in `export`, and a NIC among its own keys.
        let is_nic = ["uplink", "socket", "owner", "group", "mode"].into_iter().any(|key| keys.contains_key(key));
        self.check_socket(&keys, if is_nic { "" } else { "export." }, is_new)
    }

    fn check_socket(&self, keys: &BTreeMap<String, toml::Value>, of: &str, is_new: bool) -> Result<(), String> {
        let (access, file) = (&self.settings.access, self.file.display());
        let text = |key: &str| keys.get(&format!("{of}{key}")).and_then(toml::Value::as_str);
        if text("listen").is_some() {
            return Err(
                "With the role attach a volume cannot be served over TCP, which has no owner and no mode; name an \
                        export.socket"
                    .to_owned(),
            );
        }
        if let Some(socket) = text("socket").filter(|socket| !is_inside(Path::new(socket), &access.socket_root)) {
            let root = access.socket_root.display();
            return Err(format!(
                "{of}socket: {socket} is not in {root}; name a socket in that folder, without '..', or state another \
                 socket_root in [daemon.access] of {file}"
            ));
        }
        type Kind = fn(String) -> Account;
        let accounts = [("owner", "user", Account::User as Kind), ("group", "group", Account::Group)];
        for (key, kind, account) in accounts {
            let Some(name) = text(key) else { continue };
            if !access.socket_accounts.contains(&account(name.to_owned())) {
                return Err(format!(
                    "{of}{key}: with the role attach a socket cannot be given to {kind} {name}; to allow it, add \
                     \"{kind}:{name}\" to socket_accounts in [daemon.access] of {file}"
                ));
            }
        }
        let mode = text("mode").map_or_else(|| is_new.then_some(0o660), |mode| u32::from_str_radix(mode, 8).ok());
        match mode {
            Some(mode) if mode & !access.socket_mode != 0 => Err(format!(
                "{of}mode: {mode:04o} permits more than {:04o}, the socket_mode in [daemon.access] of {file}; state a mode \
                 within it",
                access.socket_mode
            )),
            // The reader rejects what is not a mode.
            _ => Ok(()),
        }
    }
}

/// Keys of a NIC that a client with the role attach may not set: they name an interface of the host, or let a guest pass for others.
const ADMIN_KEYS: [&str; 4] = ["tap", "spoof", "dhcp_server", "router_advertisement"];

fn other_volume(key: &str) -> String {
    format!("{key} is a key of a volume or NIC; with the role attach, name that as the target: VM/VOLUME or VM/nic/NIC")
}

/// By name; symbolic links are checked when the socket is made.
fn is_inside(path: &Path, root: &Path) -> bool {
    let climbs = path.components().any(|component| component == Component::ParentDir);
    !climbs && path != root && path.starts_with(root)
}

/// Returns the role that a request needs.
fn needed(request: &Request, overrides: &Overrides) -> Role {
    match request {
        Request::GetOverrides | Request::GetHost | Request::Keys { .. } => Role::Observe,
        Request::TestAlert { .. } => Role::Change,
        request if request.is_question() => Role::Observe,
        Request::Set { keys, reset, .. }
            if keys.keys().all(|key| is_policy(key)) && are_policies(overrides, Some(reset)) =>
        {
            Role::Change
        }
        Request::Reset { name, .. } if are_policies(overrides, name.as_ref().map(Names::as_slice)) => Role::Change,
        Request::Reset { .. } => Role::Attach,
        Request::Attach { .. } | Request::Detach { .. } | Request::Resize { .. } | Request::Set { .. } => Role::Attach,
        // A file that the client names is read with the daemon's rights, and a loss of data is for the host's operator.
        _ => Role::Admin,
    }
}

/// Whether all changes with these names, or all, are of policies.
fn are_policies(overrides: &Overrides, names: Option<&[String]>) -> bool {
    let is_policy = |change: &Change| matches!(change, Change::Set { key, .. } if is_policy(key));
    overrides.named(names).all(|known| is_policy(&known.change))
}

/// Whether a key, with dots for tables, is part of a policy.
pub fn is_policy(key: &str) -> bool {
    let key = key.split('.').next().unwrap_or(key);
    let others = ["policy", "allow_slow", "net", "receive"];
    POLICY_KEYS.iter().chain(CPU_KEY).map(|key| key.name).chain(others).any(|known| known == key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: u32, groups: &[u32]) -> Peer {
        Peer { uid, gid: uid, groups: groups.into(), pid: None, login: None }
    }

    fn settings(text: &str) -> DaemonSettings {
        let read = sluice_config::parse("a test's host file", &format!("[daemon]\n{text}"));
        read.unwrap_or_else(|found| panic!("{found}")).daemon
    }

    fn request(json: &str) -> Request {
        serde_json::from_str(json).unwrap()
    }

    fn error(settings: &DaemonSettings, peer: &Peer, json: &str) -> Option<String> {
        let roles = Roles::of(&settings.access, Some(700));
        let rights = Rights { roles: &roles, settings, file: Path::new("/etc/sluice/sluice.toml") };
        rights.check(&request(json), peer, &Overrides::default()).err()
    }

    const GET: &str = r#"{"verb":"get-overrides"}"#;
    const LIMIT: &str = r#"{"verb":"set","target":"a","keys":{"limit":"5 iops","latency":{"p99":"5ms"}}}"#;
    const TEST: &str = r#"{"verb":"test-alert"}"#;
    const SOURCE: &str = r#"{"verb":"set","target":"a/v","keys":{"limit":"5 iops","source":"/srv/vm/b"}}"#;
    const DETACH: &str = r#"{"verb":"detach","target":"a"}"#;
    const APPLY: &str = r#"{"verb":"apply","file":"/etc/shadow","dry_run":true}"#;

    #[test]
    fn each_role_includes_those_before_it() {
        let settings =
            settings("source_root = \"/srv/vm\"\n[daemon.access]\nchange = [\"user:11\"]\nattach = [\"group:12\"]");
        let all = [GET, LIMIT, TEST, SOURCE, DETACH, APPLY];
        let allowed = |peer: &Peer| all.iter().filter(|json| error(&settings, peer, json).is_none()).count();
        let peers = [peer(10, &[]), peer(10, &[700]), peer(11, &[]), peer(10, &[700, 12]), peer(12, &[]), peer(0, &[])];
        assert_eq!(peers.map(|peer| allowed(&peer)), [0, 1, 3, 5, 5, 6]);
    }

    #[test]
    fn a_set_that_takes_an_attached_volume_back_needs_the_role_attach() {
        use crate::state::overrides::testing::{made, set};
        let mut overrides = Overrides::default();
        let attached = Change::Attach { keys: toml::Table::new() };
        overrides.add_all(vec![made("a/v", attached, serde_json::Value::Null), set("a", "weight", "7")]);
        let needs = |reset: &str| {
            let json = format!(r#"{{"verb":"set","target":"a","keys":{{"limit":"5 iops"}},"reset":["{reset}"]}}"#);
            needed(&serde_json::from_str(&json).unwrap(), &overrides)
        };
        assert!(needs("a/weight") == Role::Change && needs("a/v") == Role::Attach && needs("a") == Role::Attach);
    }

    #[test]
    fn a_refusal_says_which_role_is_needed_and_how_to_give_it() {
        let settings = settings("");
        assert_eq!(
            error(&settings, &peer(10, &[700]), LIMIT).unwrap(),
            "This command needs the role change, and uid 10 has the role observe; to give it, add \"user:10\" or one of its \
             groups to change in [daemon.access] of /etc/sluice/sluice.toml, and run `sluice apply /etc/sluice/sluice.toml` as \
             root"
        );
        let apply = error(&settings, &peer(10, &[]), APPLY).unwrap();
        assert!(apply.contains("only for root and the daemon's own user, and uid 10 has no role"), "{apply}");
    }

    #[test]
    fn a_client_that_attaches_may_not_name_any_source_or_socket() {
        let access = "[daemon.access]\nattach = [\"user:9\"]\nsocket_root = \"/run/vms\"\nsocket_accounts = \
                      [\"user:libvirt-qemu\", \"group:kvm\"]\n";
        let (open, rooted) = (settings(access), settings(&format!("source_root = \"/srv/vm\"\n{access}")));
        let attach = |settings: &DaemonSettings, uid: u32, keys: &str| {
            let json = format!(r#"{{"verb":"attach","target":"a/v","keys":{keys},"vm":{{}}}}"#);
            error(settings, &peer(uid, &[]), &json).unwrap_or_default()
        };
        let source = r#"{"source":"/srv/vm/a.img"}"#;
        assert!(attach(&open, 9, source).contains("source_root"));
        assert_eq!((attach(&rooted, 9, source), attach(&open, 0, source)), (String::new(), String::new()));
        let export = |keys: &str| attach(&rooted, 9, &format!(r#"{{"export":{{{keys}}}}}"#));
        assert_eq!(export(r#""socket":"/run/vms/a","owner":"libvirt-qemu","group":"kvm","mode":"0600""#), "");
        for (keys, error) in [
            (r#""socket":"/run/a""#, "export.socket: /run/a is not in /run/vms"),
            (r#""socket":"/run/vms/../a""#, "export.socket: /run/vms/../a is not in /run/vms"),
            (r#""listen":"127.0.0.1:10809""#, "cannot be served over TCP"),
            (r#""socket":"/run/vms/a","owner":"kvm""#, "export.owner: with the role attach"),
            (r#""socket":"/run/vms/a","group":"root""#, "add \"group:root\" to socket_accounts"),
            (r#""socket":"/run/vms/a","mode":"0666""#, "export.mode: 0666 permits more than 0660"),
        ] {
            assert!(export(keys).contains(error), "{keys}: {}", export(keys));
        }
        for json in [
            r#"{"verb":"set","target":"a/v","keys":{"export.mode":"0666"}}"#,
            r#"{"verb":"set","target":"a","keys":{"volume":{"v":{"export":{"socket":"/run/a"}}}}}"#,
            r#"{"verb":"attach","target":"a/v","keys":{},"vm":{"volume":{"w":{"export":{"socket":"/run/a"}}}}}"#,
        ] {
            assert!(error(&rooted, &peer(9, &[]), json).is_some(), "a key in another form: {json}");
            assert_eq!(error(&rooted, &peer(0, &[]), json), None);
        }
        let narrow = settings(&format!("{access}socket_mode = \"0600\""));
        assert!(attach(&narrow, 9, r#"{"export":{"socket":"/run/vms/a"}}"#).contains("0660 permits more than 0600"));
        assert!(
            error(&rooted, &peer(9, &[]), r#"{"verb":"set","target":"a/v","keys":{"export":{"mode":"0666"}}}"#)
                .is_some()
        );
    }
    #[test]
    fn a_client_that_attaches_a_nic_may_not_name_any_socket_or_reach_beyond_its_vm() {
        let access = "[daemon.access]\nchange = [\"user:8\"]\nattach = [\"user:9\"]\nsocket_root = \"/run/vms\"\n\
                      socket_accounts = [\"group:kvm\"]\n";
        let settings = settings(access);
        let ask = |verb: &str, uid: u32, keys: &str| {
            let vm = if verb == "attach" { r#","vm":{}"# } else { "" };
            let json = format!(r#"{{"verb":"{verb}","target":"a/nic/n","keys":{{{keys}}}{vm}}}"#);
            error(&settings, &peer(uid, &[]), &json).unwrap_or_default()
        };
        let fine = r#""uplink":"lan","socket":"/run/vms/a","group":"kvm","mode":"0600","vlan":20"#;
        assert_eq!(ask("attach", 9, fine), "");
        for (keys, error) in [
            (r#""uplink":"lan","socket":"/run/a""#, "socket: /run/a is not in /run/vms"),
            (
                r#""socket":"/run/vms/a","owner":"root""#,
                "owner: with the role attach a socket cannot be given to user root",
            ),
            (r#""socket":"/run/vms/a","mode":"0666""#, "mode: 0666 permits more than 0660"),
            (r#""uplink":"lan","tap":"eth0""#, "tap cannot be set with the role attach"),
            (r#""uplink":"lan","spoof":true"#, "spoof cannot be set with the role attach"),
            (r#""uplink":"lan","dhcp_server":true"#, "dhcp_server cannot be set with the role attach"),
        ] {
            for verb in ["attach", "set"] {
                assert!(ask(verb, 9, keys).contains(error), "{verb} {keys}: {}", ask(verb, 9, keys));
                assert_eq!(ask(verb, 0, keys), "");
            }
        }
        let inner = r#"{"verb":"set","target":"a","keys":{"nic":{"n":{"tap":"eth0"}}}}"#;
        assert!(error(&settings, &peer(9, &[]), inner).is_some(), "a key in another form");
        // Policies of the network are policies.
        assert_eq!(ask("set", 8, r#""limit":"1Mbit/s","receive":{"limit":"1Mbit/s"}"#), "");
        let net = r#"{"verb":"set","target":"a","keys":{"net":{"limit":"1Mbit/s"}}}"#;
        assert_eq!(error(&settings, &peer(8, &[]), net), None);
        assert!(ask("set", 8, r#""addresses":[]"#).contains("needs the role attach"));
    }
}
