//! Sockets, addresses and sources that volumes share or expose.

use super::*;

#[test]
fn exports() {
    check(&[
        (EXPORT, "", &[(9, "Volume a/v: export is missing")]),
        (EXPORT, "export = {}", &[(12, "Volume a/v: export.socket is missing, and so is listen")]),
        (
            EXPORT,
            "export = { type = \"vhost-user-net\", socket = \"/run/a\" }",
            &[(12, "Volume a/v: export.type: 'vhost-user-net' is not an accepted value")],
        ),
        (
            EXPORT,
            "export = { type = \"vhost-user-blk\", listen = \"127.0.0.1:1\" }",
            &[(12, "Volume a/v: export.listen: guest memory cannot be shared over TCP")],
        ),
        (
            EXPORT,
            "export = { type = \"vhost-user-blk\", socket = \"/run/a\", queues = 65 }",
            &[(12, "Volume a/v: export.queues: the number is out of range")],
        ),
        (
            EXPORT,
            "export = { socket = \"/run/a\", queues = 2 }",
            &[(12, "Volume a/v: export.queues: NBD has no virtqueues")],
        ),
        (
            EXPORT,
            "export = { listen = \"127.0.0.1\" }",
            &[(12, "Volume a/v: export.listen: '127.0.0.1' is not an address with a port")],
        ),
    ]);
}

#[test]
fn sockets_of_exports() {
    check(&[
        (EXPORT, "export = { listen = \"127.0.0.1:0\" }", &[(12, "Volume a/v: export.listen: port 0 is invalid")]),
        (
            EXPORT,
            "export = { listen = \"127.0.0.1:1\", socket = \"/a\" }",
            &[(12, "Volume a/v: export.listen: the export already has a socket")],
        ),
        (
            EXPORT,
            "export = { listen = \"127.0.0.1:1\", mode = \"0600\" }",
            &[(12, "Volume a/v: export.mode: it applies only to a socket, and there is no socket")],
        ),
        (
            EXPORT,
            "export = { socket = \"/a\", mode = 660 }",
            &[(12, "Volume a/v: export.mode must be permissions in octal as text, not a whole number")],
        ),
        (
            EXPORT,
            "export = { socket = \"/a\", mode = \"0888\" }",
            &[(12, "Volume a/v: export.mode: '0888' is not a file mode")],
        ),
        (
            EXPORT,
            "export = { socket = \"/a\", owner = \"\" }",
            &[(12, "Volume a/v: export.owner: not a valid account name or number")],
        ),
        (
            EXPORT,
            "export = { socket = \"/a\", name = \"\" }",
            &[(12, "Volume a/v: export.name: the name is not valid")],
        ),
        (
            EXPORT,
            "export = { socket = \"/run/0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012\" }",
            &[(12, "Volume a/v: export.socket: the path has 108 bytes")],
        ),
    ]);
}

/// [`GOOD`] with a second volume.
fn second(lines: &str) -> Vec<String> {
    let text = format!("{GOOD}[vm.a.volume.w]\ndevice = \"d\"\n{lines}\n");
    let found = match parse("host.toml", &text) {
        Ok(host) => host.warnings,
        Err(found) => found.0,
    };
    found.into_iter().map(|found| found.message).collect()
}

#[test]
fn metrics_are_served_to_this_host_only() {
    let found = |value: &str| {
        let text = format!("{GOOD}\n[daemon]\nmetrics = \"{value}\"");
        parse("host.toml", &text).map(|host| host.daemon.metrics.is_some()).map_err(|found| found.0[0].message.clone())
    };
    let places = ["127.0.0.1:9925", "127.9.0.1:1", "[::1]:9925", "/run/sluice/metrics.sock"];
    places.iter().for_each(|place| assert_eq!(found(place), Ok(true), "{place}"));
    let cases = [
        (
            "0.0.0.0:9925",
            "Host file: daemon.metrics: other hosts could reach 0.0.0.0:9925, and metrics are served to any client",
        ),
        (
            "[::]:9925",
            "Host file: daemon.metrics: other hosts could reach [::]:9925, and metrics are served to any client",
        ),
        (
            "192.0.2.1:9925",
            "Host file: daemon.metrics: other hosts could reach 192.0.2.1:9925, and metrics are served to any client",
        ),
        ("127.0.0.1:0", "Host file: daemon.metrics: port 0 is invalid"),
        ("127.0.0.1", "Host file: daemon.metrics: '127.0.0.1' is neither an address with a port nor a path"),
        ("metrics.sock", "Host file: daemon.metrics: 'metrics.sock' is neither an address with a port nor a path"),
    ];
    cases.iter().for_each(|(place, error)| assert_eq!(found(place), Err((*error).to_owned())));
}

#[test]
fn two_volumes_may_not_share_exclusive_resources() {
    let own = "source = \"/srv/vm/w.img\"\nexport = { socket = \"/run/sluice/w.sock\" }";
    assert_eq!(second(own), [""; 0]);
    let taken = own.replace("/w.sock", "/a.sock");
    assert_eq!(second(&taken), ["Volume a/w: /run/sluice/a.sock is already used by Volume a/v"]);
    let host = format!("{own}\n[nbd]\nsocket = \"/run/sluice/w.sock\"");
    assert_eq!(second(&host), ["Volume a/w: /run/sluice/w.sock is already used by [nbd]"]);
    let control = format!("{own}\n[daemon]\ncontrol = \"/run/sluice/w.sock\"");
    assert_eq!(second(&control), ["Volume a/w: /run/sluice/w.sock is already used by [daemon] control"]);
    let metrics = format!("{own}\n[daemon]\nmetrics = \"/run/sluice/w.sock\"");
    assert_eq!(second(&metrics), ["Volume a/w: /run/sluice/w.sock is already used by [daemon] metrics"]);
    let long = format!("{own}\n[daemon]\ncontrol = \"/{}\"", "x".repeat(107));
    assert_eq!(second(&long), ["Host file: daemon.control: the path has 108 bytes"]);
    let any = own.replace("socket = \"/run/sluice/w.sock\"", "listen = \"127.0.0.1:10809\"")
        + "\n[nbd]\nlisten = \"0.0.0.0:10809\"\ninsecure = true";
    let reach = "[nbd]: any client that reaches 0.0.0.0:10809 can read and write the volumes";
    assert_eq!(second(&any), ["Volume a/w: 127.0.0.1:10809 is already used by [nbd]", reach]);
    let name = own.replace("w.sock\"", "w.sock\", name = \"a/v\"");
    assert_eq!(second(&name), ["Volume a/w: the export name 'a/v' is already used by a/v"]);
    let bytes = own.replace("w.img", "a.img") + "\noffset = \"1GiB\"";
    assert_eq!(second(&bytes), ["Volume a/w: its bytes of /srv/vm/a.img overlap those of a/v"]);
    assert_eq!(second(&(bytes + "\nread_only = true")).len(), 1);
}

#[test]
fn nbd_listened_on_the_network_without_a_setting_of_the_operator() {
    let open = |more: &str| found(&(GOOD.to_owned() + "[nbd]\nlisten = \"192.0.2.1:10809\"\n" + more));
    let reach = vec!["[nbd]: any client that reaches 192.0.2.1:10809 can read and write the volumes".to_owned()];
    assert_eq!(open(""), (reach.clone(), true));
    assert_eq!(open("insecure = false"), (reach.clone(), true));
    assert_eq!(open("insecure = true"), (reach, false));
    assert_eq!(found(&(GOOD.to_owned() + "[nbd]\nlisten = \"[::1]:10809\"\n")), (vec![], false));
    let own = GOOD.replace("socket = \"/run/sluice/a.sock\"", "listen = \"192.0.2.1:10809\"");
    assert!(found(&own).1 && !found(&own.replace("10809\"", "10809\", insecure = true")).1);
}

#[test]
fn ranges_of_one_source_may_touch_and_readers_may_overlap() {
    let with = |first: &str, second: &str| {
        let text = GOOD.replace("source", &format!("{first}\nsource")) + "[vm.a.volume.w]\ndevice = \"d\"\n" + second;
        let text = text + "\nsource = \"/srv/vm/a.img\"\nexport = { socket = \"/run/sluice/w.sock\" }\n";
        parse("host.toml", &text).map_or_else(|found| found.errors(), |_| 0)
    };
    assert_eq!(with("size = \"1GiB\"", "offset = \"1GiB\""), 0);
    assert_eq!(with("size = \"1GiB\"", "offset = \"512MiB\""), 1);
    assert_eq!(with("offset = \"1GiB\"", "size = \"1GiB\""), 0);
    assert_eq!(with("read_only = true", "read_only = true"), 0);
    assert_eq!(with("read_only = true", "size = \"512B\""), 1);
}

#[test]
fn properties_of_the_guests_disk() {
    check(&[
        (
            EXPORT,
            "export = { socket = \"/a\" }\nserial = \"\"",
            &[(13, "Volume a/v: serial: '' is not 1 to 20 printable ASCII characters")],
        ),
        (
            EXPORT,
            "export = { socket = \"/a\" }\nserial = \" a\"",
            &[(13, "Volume a/v: serial: ' a' is not 1 to 20 printable ASCII characters")],
        ),
        (
            EXPORT,
            "export = { socket = \"/a\" }\nserial = \"123456789012345678901\"",
            &[(13, "Volume a/v: serial: '123456789012345678901' is not 1 to 20 printable ASCII characters")],
        ),
        (
            EXPORT,
            "export = { socket = \"/a\" }\ndiscard = \"on\"",
            &[(13, "Volume a/v: discard: 'on' is not an accepted value")],
        ),
        (
            EXPORT,
            "export = { socket = \"/a\" }\nblock_size = \"600B\"",
            &[(13, "Volume a/v: block_size: 600B is not a power of two")],
        ),
        (
            EXPORT,
            "export = { socket = \"/a\" }\nblock_size = \"256B\"",
            &[(13, "Volume a/v: block_size: 256B is out of range")],
        ),
        (
            EXPORT,
            "export = { socket = \"/a\" }\nblock_size = \"4KiB\"\nsize = \"6KiB\"",
            &[(14, "Volume a/v: size: it is not a whole number of blocks of 4KiB")],
        ),
    ]);
}

#[test]
fn two_disks_of_a_guest_had_the_same_serial_number() {
    let with = |first: &str, second: &str, more: &str| {
        let text = GOOD.replace("volume.v", &format!("volume.{first}")) + &format!("[vm.a.volume.{second}]\n{more}\n");
        text + "device = \"d\"\nsource = \"/srv/vm/w.img\"\nexport = { socket = \"/run/sluice/w.sock\" }\n"
    };
    let serials = |text: &str| {
        let host = parse("host.toml", text).unwrap_or_else(|found| panic!("{found}"));
        host.vms["a"].volumes.values().map(|volume| volume.serial.clone()).collect::<Vec<_>>()
    };
    let (long, longer) = ("postgres-tablespace-", "postgres-tablespace-b");
    let (other, own) = ("postgres-tablespace-a", "postgres-ta-1efa853c");
    // It depends on its own name alone, and not on a sibling that may come later.
    assert_eq!(serials(&with("v", longer, "")), [own, "v"]);
    assert_eq!(serials(&with(other, longer, "")), ["postgres-ta-21fa89f5", own]);
    assert_eq!(serials(&with(long, longer, "")), [long, own]);
    assert_eq!(serials(&with(longer, "w", "serial = \"postgres-tablespace-\"")), [own, long], "stated");
    let refused = parse("host.toml", &with(longer, own, "")).unwrap_err().to_string();
    assert!(refused.contains(&format!("serial: '{own}' is already the serial number of volume a/")), "{refused}");
    let refused = parse("host.toml", &with("v", "w", "serial = \"v\"")).unwrap_err().to_string();
    assert!(refused.contains("Volume a/w: serial: 'v' is already the serial number of volume a/v"), "{refused}");
}
