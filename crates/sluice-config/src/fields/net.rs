//! Keys of the network side: uplinks, NICs, and the `net` table of a policy, which a NIC has among its own keys.

use core::time::Duration;

use sluice_sched::scheduler::DeviceClass;

use super::kinds::{ALLOW_UNENFORCED, LATENCY_RANGE, NONE, UNLIMITED, WEIGHT_KIND, WEIGHT_RANGE};
use super::serving::SOCKET_KEYS;
use super::{ADMISSION, Key, Kind, Section};

/// `[uplink.NAME]`
pub static UPLINK: Section = Section {
    title: "uplink.NAME",
    doc: "A network link that NICs of VMs share, with a scheduler in front of it. It has one of `bridge`, `nic` and `tap`",
    groups: &[&[
        Key::new(
            "bridge",
            Kind::Interface,
            "\"br0\"",
            "A bridge of the host: a TAP of the daemon becomes a port of it. Rules of the bridge see this port, not the \
             individual VMs",
        ),
        Key::new(
            "nic",
            Kind::Interface,
            "\"eth1\"",
            "A network interface that only the daemon uses. It must have no address, and be no port of a bridge or bond; \
             otherwise use `bridge`",
        ),
        Key::new("tap", Kind::Interface, "\"up0\"", "A TAP. The host, or a program on it, is the other end of the link"),
        Key::new(
            "rate",
            Kind::LinkRate,
            "\"1Gbit/s\"",
            "Capacity of the wire in each direction. Each frame also counts the 24 bytes that surround it on the wire. \
             Required if anything is reserved",
        )
        .default("none: frames wait only for the interface"),
        Key::new(
            "reservable",
            Kind::Percent(0, 10_000),
            "\"75%\"",
            "The part of `rate` that VMs may reserve together. It is at most 100 % minus the scheduler's `weight_floor`, if it \
             has one",
        )
        .default("\"75%\""),
        ADMISSION,
        Key::new("scheduler", Kind::Scheduler, "\"mclock\"", "The scheduler; its parameters are in a table with its name")
            .default("\"mclock\""),
        Key::new(
            "isolated",
            Kind::Bool,
            "true",
            "With `bridge`: the bridge passes no frames between this port and its other isolated ports",
        )
        .default("false"),
        Key::new(
            "mtu",
            MTU,
            "1500",
            "Largest packet in bytes, without its Ethernet header; larger ones are dropped and counted",
        )
        .default("1500"),
    ]],
    scheduler_tables: &[DeviceClass::Network],
};
/// 68 is the least that IPv4 allows.
const MTU: Kind = Kind::Integer(68, 65_535);

/// `[vm.NAME.nic.NAME]`
pub static NIC: Section = Section {
    title: "vm.NAME.nic.NAME",
    doc: "A virtual NIC, which the guest reaches through a vhost-user-net socket or a TAP. If it has its own policy, it \
          competes by that policy with the other NICs of its VM on the same uplink. Together, the NICs of a VM may \
          reserve at most what the VM reserves in its `net` table. If one of them reserves nothing, the others may \
          reserve at most that minus the scheduler's `weight_floor`",
    groups: &[
        &[Key::new("uplink", Kind::Name("uplink"), "\"lan\"", "The uplink that it shares")],
        SOCKET_KEYS,
        &[
            Key::new(
                "tap",
                Kind::Interface,
                "\"db1-eth0\"",
                "Name of a TAP, instead of a socket. If the TAP exists when the NIC is added, it belongs to a VMM, and \
                 the daemon uses the host's side of it. Otherwise the daemon creates it, for a namespace or a container. \
                 The kernel drops frames that do not fit into the TAP's queue; with a socket, frames wait in the guest",
            ),
            Key::new("queues", Kind::Integer(1, 64), "4", "Socket: the maximum number of pairs of virtqueues of the VM")
                .default("16"),
            Key::new("mac", Kind::Mac, "\"52:54:00:12:34:56\"", "Address of the guest's interface")
                .default("a locally administered one, made from the names of VM and NIC"),
            Key::new(
                "addresses",
                Kind::Networks,
                "[\"10.0.0.5/32\", \"fd00::5/128\"]",
                "IP addresses that the guest may send from. Frames from others are dropped and counted",
            )
            .default("[]: any"),
            Key::new(
                "spoof",
                Kind::Bool,
                "true",
                "Whether the guest may send from any MAC address, as a bridge or a router does. Otherwise frames from \
                 any address except `mac` are dropped and counted",
            )
            .default("false"),
            Key::new(
                "dhcp_server",
                Kind::Bool,
                "true",
                "Whether the guest may answer DHCP requests; otherwise such frames are dropped and counted",
            )
            .default("false"),
            Key::new(
                "router_advertisement",
                Kind::Bool,
                "true",
                "Whether the guest may announce itself as an IPv6 router; otherwise such frames are dropped and counted",
            )
            .default("false"),
            Key::new(
                "vlan",
                Kind::Integer(1, 4094),
                "20",
                "VLAN of the NIC: the tag of its frames on the uplink. The daemon passes no frames between NICs of \
                 different VLANs",
            )
            .default("untagged"),
            Key::new("mtu", MTU, "1500", "Largest packet in bytes, without its Ethernet header; at most the uplink's")
                .default("that of the uplink"),
            Key::new(
                "offloads",
                Kind::Bool,
                "false",
                "Whether the guest may leave checksums and segmentation to the host. Without them each packet of the guest is one \
                 frame, which costs several times the CPU time",
            )
            .default("true"),
            Key::new(
                "policy",
                Kind::Name("policy"),
                "\"gold\"",
                "Named policy. Its `net` table applies to the NIC, relative to the other NICs of its VM",
            )
            .default("only weight 100"),
        ],
        NET_KEYS,
    ],
    scheduler_tables: &[],
};

/// `[policy.NAME.net]`
pub static NET: Section = Section {
    title: "policy.NAME.net",
    doc: "Guarantees and limits of a VM on each uplink that it uses. They are separate from those for disks: nothing is \
          inherited. Rates are in bits or bytes per second on the wire: each frame also counts the 24 bytes that surround \
          it, and a large segment counts as the frames into which it is cut, each with its headers. `receive` is for the \
          other direction",
    groups: &[NET_KEYS],
    scheduler_tables: &[],
};

/// The table `net`.
pub(super) const NET_KEY: &[Key] =
    &[Key::new("net", Kind::Table(&NET), "{ limit = \"200Mbit/s\" }", "Guarantees and limits of the VM's NICs")];

const NET_KEYS: &[Key] = &[
    Key::new(
        "reservation",
        Kind::Either(&[Kind::LinkRate, NONE]),
        "\"100Mbit/s\"",
        "Minimum rate while the VM or NIC has frames to send. The reservation is part of the share, not added to it",
    )
    .default("\"none\""),
    Key::new(
        "limit",
        Kind::Either(&[Kind::LinkRate, UNLIMITED]),
        "\"200Mbit/s\"",
        "Maximum rate of sending, apart from the burst, even on an idle link",
    )
    .default("\"unlimited\""),
    Key::new(
        "weight",
        WEIGHT_KIND,
        "400",
        "Share of the spare capacity, relative to the weights of other VMs, or of the VM's other NICs; none: only the reservation",
    )
    .default("100"),
    Key::new(
        "burst",
        Kind::Time(Duration::from_micros(100), Duration::from_secs(1)),
        "\"5ms\"",
        "Amount that the limit lets through back to back after a pause: one frame, plus what the limit passes in this \
         time, rounded up to whole frames",
    )
    .default("2ms"),
    Key::new(
        "latency",
        NET_LATENCY_KIND,
        "{ p99 = \"1ms\" }",
        "Latency target of frames that the VM or NIC sends. The daemon measures the latency, and cuts a large segment of \
         another NIC that would occupy the wire for longer than the target",
    )
    .default("\"none\""),
    Key::new(
        "receive",
        Kind::Table(&RECEIVE),
        "{ limit = \"500Mbit/s\" }",
        "Limit and weight of what each NIC receives. A field that a NIC does not state has the value of its VM",
    ),
    ALLOW_UNENFORCED,
];

const NET_LATENCY_KIND: Kind = Kind::Either(&[NONE, Kind::Table(&NET_LATENCY)]);

/// `latency` of the `net` table.
static NET_LATENCY: Section = Section {
    title: "policy.NAME.net.latency",
    doc: "Latency target at a percentile",
    groups: &[&[Key::new("p99", LATENCY_RANGE, "\"1ms\"", "99 of 100 frames leave within this time")]],
    scheduler_tables: &[],
};

/// `receive` of the `net` table.
static RECEIVE: Section = Section {
    title: "policy.NAME.net.receive",
    doc: "Limit and weight of what each NIC receives. There is no minimum: if the link to the host is full, the senders \
          and the network decide which frames arrive",
    groups: &[&[
        Key::new(
            "limit",
            Kind::Either(&[Kind::LinkRate, UNLIMITED]),
            "\"500Mbit/s\"",
            "Maximum rate of receiving. Frames above it wait in a bounded queue; if the queue is full, they are dropped \
             and counted",
        )
        .default("\"unlimited\""),
        Key::new(
            "weight",
            WEIGHT_RANGE,
            "400",
            "Share of the daemon's CPU time for received frames, relative to the weights of other NICs of the uplink",
        )
        .default("100"),
    ]],
    scheduler_tables: &[],
};
