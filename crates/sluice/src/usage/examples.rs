//! An example or more of each command: for the errors of its arguments, its help, and its manual page.

/// Examples of the commands: the command, and what it types and does.
const EXAMPLES: &[(&str, &[(&str, &str)])] = &[
    (
        "",
        &[
            ("sluice check /etc/sluice/sluice.toml", "check a host file"),
            ("sluice status", "see whether every promise is kept"),
            ("sluice get vms", "list the VMs with their rates"),
            ("sluice why db1", "learn why VM db1 is slow"),
        ],
    ),
    ("serve", &[("sluice serve /etc/sluice/sluice.toml", "serve the VMs of a host file")]),
    (
        "check",
        &[
            ("sluice check /etc/sluice/sluice.toml", "check the file alone"),
            ("sluice check --host /etc/sluice/sluice.toml", "check also the disks, sockets and limits of this host"),
        ],
    ),
    (
        "doctor",
        &[
            ("sluice doctor", "examine this host"),
            ("sluice doctor /etc/sluice/sluice.toml", "examine the disks and sockets of a host file"),
        ],
    ),
    (
        "apply",
        &[
            ("sluice apply --dry-run /etc/sluice/sluice.toml", "see what would change"),
            ("sluice apply /etc/sluice/sluice.toml", "put the changed host file into force"),
        ],
    ),
    (
        "attach",
        &[
            (
                "sluice attach db1/data device=nvme0 source=/srv/vm/data.img export.socket=/run/sluice/db1-data.sock",
                "serve another volume of VM db1",
            ),
            ("sluice attach db1/nic/eth1 uplink=lan socket=/run/sluice/db1-eth1.sock", "serve another NIC"),
        ],
    ),
    ("detach", &[("sluice detach db1/data", "stop serving one volume"), ("sluice detach db1", "stop serving a VM")]),
    ("resize", &[("sluice resize db1/data 20GiB", "grow a volume to 20 GiB")]),
    (
        "set",
        &[
            ("sluice set db1 limit=\"5000 iops\" weight=300", "change two keys of VM db1"),
            ("sluice set --for 2h --reason backup db1/data limit=100MiB/s", "limit a volume for two hours"),
            ("sluice set policy/gold reservation=\"500 iops\"", "change a named policy"),
        ],
    ),
    (
        "status",
        &[("sluice status", "see whether every promise is kept"), ("sluice status --watch", "see it each second")],
    ),
    (
        "top",
        &[
            ("sluice top", "watch VMs and devices"),
            ("sluice top --batch -n 1 -o json", "print them once, for a script"),
        ],
    ),
    (
        "get vms",
        &[("sluice get vms", "list all VMs"), ("sluice get vms 'web*' -o wide", "list some with more columns")],
    ),
    (
        "get volumes",
        &[("sluice get volumes", "list all volumes and NICs"), ("sluice get volumes db1", "list those of VM db1")],
    ),
    ("get devices", &[("sluice get devices", "list all devices and uplinks")]),
    (
        "get clients",
        &[("sluice get clients", "list all clients"), ("sluice get clients db1/root", "list those of a volume")],
    ),
    ("get policies", &[("sluice get policies", "list the named policies with their holders")]),
    (
        "get history",
        &[
            ("sluice get history db1", "list the last 15 minutes of VM db1"),
            ("sluice get history db1/root --since \"yesterday 08:00\" --until today", "list most of yesterday"),
        ],
    ),
    ("get overrides", &[("sluice get overrides", "list what differs from the files")]),
    (
        "describe",
        &[
            ("sluice describe db1", "show a VM"),
            ("sluice describe db1/root", "show a volume"),
            ("sluice describe nvme0", "show a device"),
        ],
    ),
    (
        "events",
        &[
            ("sluice events --since 08:00 --vm db1", "list what happened to VM db1 since eight"),
            ("sluice events --follow", "wait for further events"),
        ],
    ),
    (
        "why",
        &[
            ("sluice why db1", "explain the last hour of VM db1"),
            ("sluice why db1 --since \"yesterday 22:00\"", "explain the time since then"),
        ],
    ),
    (
        "metrics",
        &[
            ("sluice metrics", "print the metrics"),
            ("sluice metrics --textfile /var/lib/prometheus/node-exporter/sluice.prom", "write them for node_exporter"),
        ],
    ),
    ("reset", &[("sluice reset db1/limit", "undo the change of one key"), ("sluice reset --all", "undo all changes")]),
    ("state restore", &[("sluice state restore --state /var/lib/sluice", "return to the state before an upgrade")]),
    ("accept-loss", &[("sluice accept-loss db1/data", "resume writes to a volume")]),
    (
        "export",
        &[
            ("sluice export libvirt-xml db1", "print the elements of a libvirt domain for what the daemon serves"),
            (
                "sluice export qemu-args db1 /etc/sluice/sluice.toml --memory 4GiB",
                "print arguments of QEMU for a host file",
            ),
        ],
    ),
    (
        "import",
        &[
            ("sluice import libvirt-xml db1.xml", "print a host file for a domain of `virsh dumpxml db1`"),
            ("sluice import proxmox-conf /etc/pve/qemu-server/104.conf", "print one for a VM of Proxmox VE"),
        ],
    ),
    (
        "schema",
        &[("sluice schema", "describe the host file"), ("sluice schema scenario", "describe the scenario file")],
    ),
    ("schedulers", &[("sluice schedulers", "list the schedulers"), ("sluice schedulers mclock", "describe one")]),
    ("demo", &[("sluice demo", "run the demonstration")]),
    (
        "reproduce",
        &[
            ("sluice reproduce --quick mclock", "check the figures of one paper"),
            ("sluice reproduce --list", "list papers, figures and rows"),
        ],
    ),
    ("sim check", &[("sluice sim check examples/scenario-division.toml", "check a scenario")]),
    ("sim run", &[("sluice sim run examples/scenario-division.toml", "run a scenario once")]),
    ("sim sweep", &[("sluice sim sweep examples/scenario-two-tier.toml", "run all combinations of its values")]),
    ("sim report", &[("sluice sim report results", "write the report of a folder of results again")]),
    (
        "advise",
        &[(
            "sluice advise ffsb-random-read --device sas-15k-450,queue=32 --ring xen",
            "compare schedulers for a workload",
        )],
    ),
    ("completions", &[("sluice completions bash", "print the script for bash")]),
    ("man", &[("sluice man pages", "write the pages into the folder pages")]),
];

/// Returns the examples of a command, or of the first ones below it.
pub(super) fn of(path: &str) -> Vec<(&'static str, &'static str)> {
    let own = EXAMPLES.iter().find(|(known, _)| *known == path).map(|(_, examples)| examples.to_vec());
    let is_below = |known: &str| known.strip_prefix(path).is_some_and(|rest| rest.starts_with(' '));
    let below = || EXAMPLES.iter().filter(|(known, _)| is_below(known)).map(|(_, examples)| examples[0]);
    own.unwrap_or_else(|| below().collect())
}
