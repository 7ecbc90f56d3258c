//! Examples of each command: for the errors of its arguments, its help, and its manual page.

/// What to type, and what that does.
const EXAMPLES: &[(&str, &str)] = &[
    ("sluice serve /etc/sluice/sluice.toml", "serve the VMs of a host file"),
    ("sluice check /etc/sluice/sluice.toml", "check the file alone"),
    ("sluice check --host /etc/sluice/sluice.toml", "check also the disks, sockets and limits of this host"),
    ("sluice doctor", "examine this host"),
    ("sluice doctor /etc/sluice/sluice.toml", "examine the disks and sockets of a host file"),
    ("sluice apply --dry-run /etc/sluice/sluice.toml", "see what would change"),
    ("sluice apply /etc/sluice/sluice.toml", "put the changed host file into force"),
    (
        "sluice attach db1/data device=nvme0 source=/srv/vm/data.img export.socket=/run/sluice/db1-data.sock",
        "serve another volume of VM db1",
    ),
    ("sluice attach db1/nic/eth1 uplink=lan socket=/run/sluice/db1-eth1.sock", "serve another NIC"),
    ("sluice detach db1/data", "stop serving one volume"),
    ("sluice detach db1", "stop serving a VM"),
    ("sluice resize db1/data 20GiB", "grow a volume to 20 GiB"),
    ("sluice set db1 limit=\"5000 iops\" weight=300", "change two keys of VM db1"),
    ("sluice set --for 2h --reason backup db1/data limit=100MiB/s", "limit a volume for two hours"),
    ("sluice set policy/gold reservation=\"500 iops\"", "change a named policy"),
    ("sluice status", "see whether every promise is kept"),
    ("sluice status --watch", "see it each second"),
    ("sluice top", "watch VMs and devices"),
    ("sluice top --batch -n 1 -o json", "print them once, for a script"),
    ("sluice ui", "serve the page for a browser of this host"),
    ("sluice ui --port 8123", "serve it on this port, for a browser that reaches it by ssh -L"),
    ("sluice ui --unix /run/sluicegate-ui/page.sock --host host3.example.org", "share it through a proxy with a login"),
    ("sluice get vms", "list all VMs"),
    ("sluice get vms 'web*' -o wide", "list some with more columns"),
    ("sluice get volumes", "list all volumes and NICs"),
    ("sluice get volumes db1", "list those of VM db1"),
    ("sluice get devices", "list all devices and uplinks"),
    ("sluice get clients", "list all clients"),
    ("sluice get clients db1/root", "list those of a volume"),
    ("sluice get policies", "list the named policies with their holders"),
    ("sluice get history db1", "list the last 15 minutes of VM db1"),
    ("sluice get history db1/root --since \"yesterday 08:00\" --until today", "list most of yesterday"),
    ("sluice get overrides", "list what differs from the files"),
    ("sluice describe db1", "show a VM"),
    ("sluice describe db1/root", "show a volume"),
    ("sluice describe nvme0", "show a device"),
    ("sluice events --since 08:00 --vm db1", "list what happened to VM db1 since eight"),
    ("sluice events --follow", "wait for further events"),
    ("sluice why db1", "explain the last hour of VM db1"),
    ("sluice why db1 --since \"yesterday 22:00\"", "explain the time since then"),
    ("sluice events --kind change --since yesterday", "list who changed what"),
    ("sluice report --since 2h", "write one archive for a ticket"),
    ("sluice alert --test", "send a test to all recipients of alerts"),
    ("sluice metrics", "print the metrics"),
    ("sluice metrics --textfile /var/lib/prometheus/node-exporter/sluice.prom", "write them for node_exporter"),
    ("sluice reset db1/limit", "undo the change of one key"),
    ("sluice reset db1/limit db1/reservation", "undo two changes in one step"),
    ("sluice reset --all", "undo all changes"),
    ("sluice state restore --state /var/lib/sluice", "return to the state before an upgrade"),
    (
        "sluice pool create /srv/meta/sluice --hosts 8 --capacity \"20000 iops@8KiB\"",
        "prepare the place where eight hosts meet",
    ),
    ("sluice pool status /srv/meta/sluice", "show its hosts and what they have reserved"),
    ("sluice pool forget /srv/meta/sluice --host 3", "release what a host that is gone has reserved"),
    ("sluice accept-loss db1/data", "resume writes to a volume"),
    ("sluice takeover db1/root", "show which client has the lock of an RBD image"),
    ("sluice takeover db1/root --from 10.0.0.3:0/3710147553", "take the image over from that client"),
    ("sluice export libvirt-xml db1", "print the elements of a libvirt domain for what the daemon serves"),
    ("sluice export qemu-args db1 /etc/sluice/sluice.toml --memory 4GiB", "print arguments of QEMU for a host file"),
    ("sluice import libvirt-xml db1.xml", "print a host file for a domain of `virsh dumpxml db1`"),
    ("sluice import proxmox-conf /etc/pve/qemu-server/104.conf", "print one for a VM of Proxmox VE"),
    ("sluice schema", "describe the host file"),
    ("sluice schema scenario", "describe the scenario file"),
    ("sluice schedulers", "list the schedulers"),
    ("sluice schedulers mclock", "describe one"),
    ("sluice demo", "run the demonstration"),
    ("sluice reproduce --quick mclock", "check the figures of one paper"),
    ("sluice reproduce --list", "list papers, figures and rows"),
    ("sluice sim check examples/scenario-division.toml", "check a scenario"),
    ("sluice sim run examples/scenario-division.toml", "run a scenario once"),
    ("sluice sim sweep examples/scenario-two-tier.toml", "run all combinations of its values"),
    ("sluice sim report results", "write the report of a folder of results again"),
    ("sluice advise ffsb-random-read --device sas-15k-450,queue=32 --ring xen", "compare schedulers for a workload"),
    ("sluice completions bash", "print the script for bash"),
    ("sluice man pages", "write the pages into the folder pages"),
];

/// The commands to begin with.
const FIRST: [&str; 4] = ["check", "status", "get vms", "why"];

/// Returns the examples of a command and of those below it; of the whole program, one of each command to begin with.
pub(super) fn of(path: &str) -> Vec<(&'static str, &'static str)> {
    if path.is_empty() {
        return FIRST.iter().filter_map(|first| of(first).first().copied()).collect();
    }
    let is_of = |line: &str| {
        let rest = line.strip_prefix("sluice ").and_then(|line| line.strip_prefix(path));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    };
    EXAMPLES.iter().copied().filter(|(line, _)| is_of(line)).collect()
}
