//! Keys of the daemon's endpoints: the `export` of a volume, `[nbd]` and `[daemon]`.

use core::time::Duration;

use super::{HOUR, Key, Kind, Section};

/// `export` of a volume.
pub static EXPORT: Section = Section {
    title: "vm.NAME.volume.NAME.export",
    doc: "How the VM accesses the volume: through a separate socket or address",
    groups: &[
        &[
            Key::new("type", Kind::Word(&["nbd", "vhost-user-blk"]), "\"vhost-user-blk\"", "The protocol")
                .default("\"nbd\""),
            Key::new("name", Kind::Text, "\"db1/root\"", "Name of the export at [nbd]").default("VM/VOLUME"),
            Key::new("queues", Kind::Integer(1, 64), "4", "vhost-user-blk: the maximum number of virtqueues of the VM")
                .default("16"),
        ],
        ENDPOINT_KEYS,
    ],
    scheduler_tables: &[],
};

const ENDPOINT_KEYS: &[Key] = &[
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
    Key::new("listen", Kind::Address, "\"127.0.0.1:10809\"", "TCP address and port"),
    Key::new(
        "insecure",
        Kind::Bool,
        "true",
        "Accepts an address that other hosts can reach. Any client that reaches it can read and write the volumes, and \
         nothing is encrypted",
    )
    .default("false"),
];

/// `[nbd]`
pub static NBD: Section = Section {
    title: "nbd",
    doc: "Serves every volume by its export name, in addition to the volumes' own sockets",
    groups: &[
        ENDPOINT_KEYS,
        &[
            Key::new(
                "connections_max",
                Kind::Integer(1, 65_536),
                "1024",
                "Maximum number of connections of the host, over all sockets. Up to half of them are reserved, so that \
                 each socket can have two. Fewer are allowed, with a warning, if the limit of file descriptors is too low",
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
        ],
    ],
    scheduler_tables: &[],
};

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
            Kind::Path,
            "\"/run/sluice/control.sock\"",
            "Socket through which attach, detach, resize and set reach the daemon; only the daemon's user can access \
             it",
        ),
        Key::new(
            "state",
            Kind::Path,
            "\"/var/lib/sluice\"",
            "Folder for changes made at run time, so that they survive a restart, and for what each volume last served. \
             The daemon makes it if its parent exists. Only one daemon may use it",
        )
        .default("`$STATE_DIRECTORY`, which systemd sets; without either, a change needs --until-restart, --for or --persist"),
        Key::new(
            "source_root",
            Kind::Path,
            "\"/srv/vm\"",
            "Folder that must contain, at any depth, every source given to `sluice attach` or `sluice set`. Sources in the \
             host file may be anywhere",
        )
        .default("none: sources may be anywhere"),
    ]],
    scheduler_tables: &[],
};
