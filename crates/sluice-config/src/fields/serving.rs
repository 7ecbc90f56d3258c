//! Keys of the daemon's endpoints: the `export` of a volume, `[nbd]` and `[daemon]`.

use core::time::Duration;

use super::{HOUR, Key, Kind, Section};
use crate::model::Layer;

/// `export` of a volume.
pub static EXPORT: Section = Section {
    title: "vm.NAME.volume.NAME.export",
    doc: "How the VM accesses the volume: through a separate socket or address",
    groups: &[
        &[
            Key::new("type", Kind::Word(&["nbd", "vhost-user-blk"]), "\"vhost-user-blk\"", "The protocol")
                .default("\"nbd\""),
            Key::new(
                "name",
                Kind::Text,
                "\"db1/root\"",
                "Export name of the volume. The empty name, too, selects the volume of a socket that offers only one",
            )
            .default("VM/VOLUME"),
            Key::new("queues", Kind::Integer(1, 64), "4", "vhost-user-blk: the maximum number of virtqueues of the VM")
                .default("16"),
        ],
        SOCKET_KEYS,
        ADDRESS_KEYS,
    ],
    scheduler_tables: &[],
};

pub(super) const SOCKET_KEYS: &[Key] = &[
    Key::new(
        "socket",
        Kind::Path,
        "\"/run/sluice/db1-root.sock\"",
        "Unix socket. Only root, the daemon's user and the stated owner and group may have write access to its folder, \
         unless the folder is sticky",
    ),
    Key::new("owner", Kind::Text, "\"libvirt-qemu\"", "User that owns the socket").default("the daemon's user"),
    Key::new("group", Kind::Text, "\"kvm\"", "Group that owns the socket").default("the daemon's group"),
    Key::new("mode", Kind::Mode, "\"0660\"", "Permissions of the socket").default("\"0660\""),
];
const ADDRESS_KEYS: &[Key] = &[
    Key::new("listen", Kind::Address, "\"127.0.0.1:10809\"", "TCP address and port"),
    Key::new(
        "insecure",
        Kind::Bool,
        "true",
        "Without `[nbd.tls]`: accepts an address that other hosts can reach. Any client that reaches it can read and write the volumes, and \
         nothing is encrypted",
    )
    .default("false"),
];

/// `[nbd]`
pub static NBD: Section = Section {
    title: "nbd",
    doc: "Serves every volume by its export name, in addition to the volumes' own sockets",
    groups: &[
        SOCKET_KEYS,
        ADDRESS_KEYS,
        &[
            Key::new(
                "connections_max",
                Kind::Integer(1, 65_536),
                "1024",
                "Maximum number of connections of the host, over all sockets. Up to half of them are reserved, so that \
                 each socket can have two. If the limit of file descriptors is too low, the daemon allows fewer, with a \
                 warning",
            )
            .default("1024"),
            Key::new(
                "memory",
                Kind::Size(64 << 20, 1 << 40),
                "\"4GiB\"",
                "Memory for the data of NBD requests of all VMs. Half of it is divided equally among the VMs, the other \
                 half is for VMs that need more",
            )
            .default("\"1GiB\""),
            Key::new("node", Kind::Text, "\"node1\"", "Name of this host as a storage node, which gateways state"),
            Key::new("tls", Kind::Table(&NBD_TLS), "", "Encrypts NBD at every TCP address, and can tell clients apart"),
            Key::new(
                "gateway",
                Kind::Named(&NBD_GATEWAY),
                "",
                "A host whose daemon serves VMs with volumes here, under the name that it states",
            ),
        ],
    ],
    scheduler_tables: &[],
};

/// `[nbd.tls]`
pub static NBD_TLS: Section = Section {
    title: "nbd.tls",
    doc: "TLS of NBD at TCP addresses, [which every client there must use](how-to/encryption.md)",
    groups: &[&[
        super::CERTIFICATE,
        super::CERTIFICATE_KEY,
        Key::new(
            "client_ca",
            Kind::Path,
            "\"/etc/sluice/tls/client-ca.pem\"",
            "Certificates that sign those of clients, in PEM. Without it a client needs no certificate",
        ),
        Key::new(
            "client",
            Kind::Named(&TLS_CLIENT),
            "",
            "A client by a name in its certificate. If there is one, the others may open nothing. Needs `client_ca`",
        ),
    ]],
    scheduler_tables: &[],
};

/// `[nbd.tls.client.NAME]`
pub static TLS_CLIENT: Section = Section {
    title: "nbd.tls.client.NAME",
    doc: "What a client may open whose certificate has this DNS name",
    groups: &[&[Key::new(
        "exports",
        Kind::Names,
        "[\"db1/*\", \"web/root\"]",
        "Names of exports, of which each may end with `*`; `\"*\"`: all of them",
    )]],
    scheduler_tables: &[],
};

/// `[nbd.gateway.NAME]`
pub static NBD_GATEWAY: Section = Section {
    title: "nbd.gateway.NAME",
    doc: "A host whose daemon serves VMs with volumes here, [as a gateway](how-to/storage-nodes.md). It tells with each request what other \
          nodes serve the VM, so that the VM has one policy over all nodes. Needs `node`. Each volume of such a VM is written by one \
          gateway at a time: the one that began to serve the VM last",
    groups: &[&[
        Key::new(
            "key_file",
            Kind::Path,
            "\"/etc/sluice/gw1.key\"",
            "File with the key that the gateway and this host share, as `openssl rand -hex 32` makes one",
        ),
        Key::new("vms", Kind::Names, "[\"db1\", \"web1\"]", "The VMs that it may serve; `\"*\"`: all of them"),
    ]],
    scheduler_tables: &[],
};

/// `jail` of `[daemon]`, as a table.
pub static JAIL: Section = Section {
    title: "daemon.jail",
    doc: "Layers that are left out of the seal, with a warning at each start",
    groups: &[&[Key::new(
        "without",
        Kind::Words(&Layer::NAMES),
        "[\"landlock\"]",
        "privileges: no new privileges, no look into the daemon by others of its user, no core dumps. landlock: files of the folders \
         of the host file alone. rings: the operations of io_uring that serving takes. seccomp: the system calls that it takes",
    )]],
    scheduler_tables: &[],
};

/// `[daemon.access]`
pub static ACCESS: Section = Section {
    title: "daemon.access",
    doc: "Who may do what over the control socket. The daemon learns the user and the groups of a client from the \
          kernel. root and the daemon's own user may do everything. Every other client needs a role, and each role \
          includes those before it: observe, change, attach. Only root and the daemon's user may use `apply`, \
          `accept-loss` and `takeover`",
    groups: &[&[
        Key::new("group", Kind::Text, "\"sluice\"", "Group that owns the control socket")
            .default("\"sluice\"; the daemon's group if there is no such group"),
        Key::new("mode", Kind::Mode, "\"0660\"", "Permissions of the control socket").default("\"0660\""),
        Key::new("observe", Kind::Accounts, "[\"group:sluice\"]", "May read the state of the daemon")
            .default("the group of the socket"),
        Key::new(
            "change",
            Kind::Accounts,
            "[\"user:alice\", \"group:operators\"]",
            "May also change policies with `set`, undo such changes with `reset`, and send test alerts with `alert --test`",
        )
        .default("[]"),
        Key::new(
            "attach",
            Kind::Accounts,
            "[\"user:nova\"]",
            "May also attach, detach and resize volumes, and set their other keys. Requires `source_root`, which must \
             contain the sources. The next three keys restrict the sockets",
        )
        .default("[]"),
        Key::new(
            "socket_root",
            Kind::Path,
            "\"/run/sluice\"",
            "Folder that must contain, at any depth, the sockets of volumes that a client with the role attach names",
        )
        .default("\"/run/sluice\""),
        Key::new(
            "socket_accounts",
            Kind::Accounts,
            "[\"user:libvirt-qemu\", \"group:kvm\"]",
            "Users and groups that may own such a socket. Names and numbers are compared as text, so write each as the \
             client does",
        )
        .default("[]"),
        Key::new("socket_mode", Kind::Mode, "\"0660\"", "Permissions that such a socket may have at most")
            .default("\"0660\""),
    ]],
    scheduler_tables: &[],
};

/// `[daemon.history]`
pub static HISTORY: Section = Section {
    title: "daemon.history",
    doc: "How long the past of VMs, volumes and NICs is kept in the state directory, for `sluice get history`. A volume or NIC that is \
          always busy takes about 2 KB for an hour of minutes and 0.3 KB for its quarters of an hour: 0.6 MB with the defaults. Without a \
          state directory, a day of minutes is kept in memory",
    groups: &[&[
        Key::new("minutes", Kind::Time(HOUR, YEAR), "\"14days\"", "How long each minute is kept").default("\"7days\""),
        Key::new(
            "quarter_hours",
            Kind::Time(HOUR, YEAR),
            "\"90days\"",
            "How long each quarter of an hour is kept, with its busiest minute",
        )
        .default("\"35days\""),
    ]],
    scheduler_tables: &[],
};

const YEAR: Duration = Duration::from_hours(366 * 24);

/// `[daemon]`
pub static DAEMON: Section = Section {
    title: "daemon",
    doc: "The daemon itself",
    groups: &[&[
        Key::new(
            "drain_timeout",
            Kind::Time(Duration::ZERO, HOUR),
            "\"10s\"",
            "How long the daemon waits for requests in flight before it exits",
        )
        .default("\"10s\""),
        Key::new(
            "control",
            Kind::Either(&[Kind::Path, Kind::Word(&["none"])]),
            "\"/run/sluice/control.sock\"",
            "Socket through which commands such as set, attach and apply reach the daemon; none: no socket. It is an \
             error if the daemon cannot create a stated socket. If it cannot create the default one, it logs the reason \
             and serves without it",
        )
        .default("`$SLUICE_SOCKET`, or /run/sluice/control.sock"),
        Key::new(
            "access",
            Kind::Table(&ACCESS),
            "{ change = [\"group:operators\"] }",
            "Who may do what over the control socket",
        ),
        Key::new(
            "metrics",
            Kind::Either(&[Kind::Address, Kind::Path]),
            "\"127.0.0.1:9925\"",
            "Where Prometheus reads metrics (`/metrics`): a loopback address and a port, which every user of this host \
             can reach, or a socket with the group and the mode of `access`. A change needs a restart. `sluice metrics` \
             works without it",
        )
        .default("none: metrics are not served"),
        Key::new(
            "state",
            Kind::Path,
            "\"/var/lib/sluice\"",
            "Folder for what must survive a restart: changes made at run time, events, history, and the source, offset and size of each \
             volume when it was last served. The daemon creates it if its parent exists. Only one daemon may use it",
        )
        .default("`$STATE_DIRECTORY`, which systemd sets; without either, a change needs --until-restart, --for or --persist"),
        Key::new(
            "history",
            Kind::Table(&HISTORY),
            "{ minutes = \"14days\" }",
            "How long the past of VMs, volumes and NICs is kept",
        ),
        Key::new(
            "real_time",
            Kind::Word(&["off", "auto"]),
            "\"auto\"",
            "auto: the threads of devices and uplinks have real-time priority, so that busy processes of the host do not \
             delay them. They then never poll. If the kernel does not allow the priority, they run at normal priority, \
             and the log, `sluice status` and `sluice doctor` say so. A change needs a restart",
        )
        .default("\"off\""),
        Key::new(
            "jail",
            Kind::Either(&[Kind::Word(&["full", "required"]), Kind::Table(&JAIL)]),
            "\"required\"",
            "The daemon seals itself before it serves: from then on the kernel does for it what serving this host file takes, and no \
             more. full: every layer that the kernel has, and a warning for one that it lacks; required: all layers, or no start. \
             A reload that needs another folder, program or address is refused, and says that it needs a restart. A change of this \
             key needs one too",
        )
        .default("\"full\""),
        Key::new(
            "source_root",
            Kind::Path,
            "\"/srv/vm\"",
            "Folder that must contain, at any depth, every source given to `sluice attach` or `sluice set`. It is a rule \
             about names: root's symbolic links and bind mounts beneath it may lead elsewhere, and are followed; a \
             sealed daemon opens what a link leads to only in folders that the host file named at its start. Sources in the \
             host file may be anywhere",
        )
        .default("none: sources may be anywhere"),
    ]],
    scheduler_tables: &[],
};

/// `[alert.CLASS]`
pub static ALERT: Section = Section {
    title: "alert.NAME",
    doc: "A program or a URL that is notified when a promise is broken or a device fails, and when that has ended. NAME \
          is a class of events (reservation, latency, capacity, overcommitted, stalled, down, held_back, out_of_service, \
          link_down, restarted, refused, queue_stopped, no_space, errors, source_shortened, server_away, low_space, client_lost), or `all` for every class without a separate table. Events are also in the log and in `sluice \
          events`",
    groups: &[&[
        Key::new(
            "command",
            Kind::Path,
            "\"/usr/local/bin/alert\"",
            "Program that is run with the event as JSON on its standard input, without a shell and for at most 10 s. \
             When it ends, the daemon kills the processes that it leaves in its process group",
        ),
        Key::new(
            "webhook",
            Kind::Text,
            "\"https://alerts.example.org/hook\"",
            "URL to which the event is posted as JSON, for at most 10 s. Its user, path and query are secret: only its host is logged and \
             shown",
        )
        .secret(),
        Key::new(
            "every",
            Kind::Time(Duration::ZERO, HOUR),
            "\"1m\"",
            "Minimum time between two alerts of the class; those in between are counted in the next one",
        )
        .default("\"1m\""),
    ]],
    scheduler_tables: &[],
};
