//! Keys of a device that is another server, or a pool of a Ceph cluster.

use super::{Key, Kind, Section};

/// Keys of `[device.NAME]` for such devices.
pub(crate) const SERVER_KEYS: &[Key] = &[
            Key::new(
                "resend",
                Kind::Word(&["reads", "unsafe"]),
                "\"reads\"",
                "Of a device that is another server, what is sent again after a lost connection. reads: reads are; others that the \
                 server may have carried out fail, and all fail when it was away for 30 s; unsafe: all are, however long it is away, also \
                 if the server carries out the first one later, over newer data",
            )
            .default("\"reads\""),
            Key::new(
                "gateway",
                Kind::Table(&GATEWAY),
                "{ name = \"gw1\", node = \"node1\", key_file = \"/etc/sluice/node1.key\" }",
                "Of a device that is a `sluice serve`: makes this host known there as a gateway. A VM with volumes on several such devices \
                 has [one policy over all of them](how-to/storage-nodes.md), which the nodes enforce. `scheduler` is `noop` then, and \
                 everything is sent again after a lost connection",
            ),
            Key::new(
                "tls",
                Kind::Table(&NODE_TLS),
                "{ ca = \"/etc/sluice/tls/ca.pem\" }",
                "Of a device that is another server at a TCP address: encrypts what is sent there, and makes sure that it is the server",
            ),
            Key::new(
                "insecure",
                Kind::Bool,
                "true",
                "Of a device that is another server at a TCP address that is not loopback: whether data may pass the network readable and \
                 changeable by all on it",
            )
            .default("false"),
            Key::new(
                "ceph_conf",
                Kind::Path,
                "\"/etc/ceph/ceph.conf\"",
                "Of a device that is [a pool of a Ceph cluster](how-to/ceph.md), or whose hosts meet in one, the configuration file of that \
                 cluster, which names its monitors and the file of the user's key",
            )
            .default("\"/etc/ceph/ceph.conf\""),
            Key::new(
                "ceph_user",
                Kind::Text,
                "\"sluice\"",
                "Of such a device, the user as whom the daemon connects to the cluster, without `client.` in front",
            )
            .default("\"admin\""),
];

/// `gateway` of a device that is another server.
pub static GATEWAY: Section = Section {
    title: "device.NAME.gateway",
    doc: "This host as a gateway of the node, which has a table `[nbd.gateway.NAME]` with the same key",
    groups: &[&[
        Key::new("name", Kind::Text, "\"gw1\"", "Name of this host at the node, the same on all its devices"),
        Key::new("node", Kind::Text, "\"node1\"", "Name of the node, as its `[nbd]` states it")
            .default("the name of the device"),
        Key::new(
            "key_file",
            Kind::Path,
            "\"/etc/sluice/node1.key\"",
            "File with the key that this host and the node share, as `openssl rand -hex 32` makes one. Both prove that they have it; it \
             encrypts nothing",
        ),
    ]],
    scheduler_tables: &[],
};

/// `tls` of a device that is another server.
pub static NODE_TLS: Section = Section {
    title: "device.NAME.tls",
    doc: "TLS to the server",
    groups: &[&[
        Key::new("ca", Kind::Path, "\"/etc/sluice/tls/ca.pem\"", "Certificates that sign that of the server, in PEM"),
        Key::new("name", Kind::Text, "\"node1.example.org\"", "Name of the server in its certificate")
            .default("the host of its address"),
        CERTIFICATE,
        CERTIFICATE_KEY,
    ]],
    scheduler_tables: &[],
};

/// Own certificate, and its key.
pub(crate) const CERTIFICATE: Key = Key::new(
    "certificate",
    Kind::Path,
    "\"/etc/sluice/tls/cert.pem\"",
    "Own certificate in PEM, followed by those that lead from it to its root. A server needs one, and a client where the server wants one",
);
pub(crate) const CERTIFICATE_KEY: Key =
    Key::new("key", Kind::Path, "\"/etc/sluice/tls/key.pem\"", "Key of the certificate, in PEM");
