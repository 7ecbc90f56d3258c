//! Keys of how the daemon is reached: the `export` of a volume, `[nbd]` and `[daemon]`.

use core::time::Duration;

use super::{HOUR, Key, Kind, Section};

/// `export` of a volume.
pub static EXPORT: Section = Section {
    title: "vm.NAME.volume.NAME.export",
    doc: "How the VM reaches the volume: by a socket or an address of its own",
    groups: &[
        &[
            Key::new("type", Kind::Word(&["nbd", "vhost-user-blk"]), "\"vhost-user-blk\"", "The protocol")
                .default("\"nbd\""),
            Key::new("name", Kind::Text, "\"db1/root\"", "The export's name at [nbd]").default("VM/VOLUME"),
            Key::new("queues", Kind::Integer(1, 64), "4", "vhost-user-blk: most virtqueues that the VM may use")
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
        "A Unix socket. Only root, the daemon's user and the stated owner and group may have write access to its folder, unless \
         the folder is sticky",
    ),
    Key::new("owner", Kind::Text, "\"libvirt-qemu\"", "The user who owns the socket").default("the daemon's user"),
    Key::new("group", Kind::Text, "\"kvm\"", "The group that owns the socket").default("the daemon's group"),
    Key::new("mode", Kind::Mode, "\"0660\"", "The socket's permissions").default("\"0660\""),
    Key::new("listen", Kind::Address, "\"127.0.0.1:10809\"", "An address and a port"),
    Key::new(
        "insecure",
        Kind::Bool,
        "true",
        "Accepts an address that other hosts can reach: who reaches it reads and writes the volumes, and nothing is encrypted",
    )
    .default("false"),
];

/// `[nbd]`
pub static NBD: Section = Section {
    title: "nbd",
    doc: "Serves every volume by its export name, beside the sockets of their own",
    groups: &[
        ENDPOINT_KEYS,
        &[Key::new(
            "connections_max",
            Kind::Integer(1, 65_536),
            "1024",
            "Connections of the host, all sockets together; up to half of them are kept so that each socket can have two",
        )
        .default("1024")],
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
            "How long it waits at its end for requests that are in flight",
        )
        .default("\"10s\""),
        Key::new(
            "control",
            Kind::Path,
            "\"/run/sluice/control.sock\"",
            "The socket at which attach, detach, resize and set reach it; for its own user alone",
        ),
        Key::new(
            "source_root",
            Kind::Path,
            "\"/srv/vm\"",
            "The folder in which sources that attach and set name must lie, at any depth; those in the host file may lie anywhere",
        )
        .default("none: anywhere"),
    ]],
    scheduler_tables: &[],
};
