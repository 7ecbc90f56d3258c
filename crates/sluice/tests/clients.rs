//! libnbd's tools see the volumes of the host file, and every request behaves as the protocol states.

use std::os::unix::fs::FileExt;

use crate::common::{Daemon, KIB, MIB, Place, free_address, nbdsh, noise, run, tool};
use serde_json::{Value, json};

fn nbdinfo(arguments: &[&str]) -> Value {
    let printed = run(tool("nbdinfo", "libnbd-bin").args(arguments)).ok();
    serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"))
}

/// Serves one VM with one volume. Returns also the URI of its export.
fn one_volume(size_bytes: u64, lines: &str) -> (Place, Daemon, String) {
    let place = Place::new();
    let image = place.image("a.img", size_bytes);
    let device = place.device("rotational = false");
    let daemon = Daemon::serve(&place, &(device + &place.volume("a", "v", &image, lines)));
    let uri = place.uri("a", "v");
    (place, daemon, uri)
}

/// Runs a script with one connection `h`, without libnbd's own checks of requests.
#[track_caller]
fn script(uri: &str, script: &str) -> String {
    nbdsh(&format!("h.add_meta_context('base:allocation')\nh.connect_uri('{uri}')\nh.set_strict_mode(0)\n{script}"))
}

/// Python function for scripts: returns the error number of a call that must fail.
const REFUSED: &str = "
import errno
def refused(call, *arguments, **named):
    try:
        call(*arguments, **named)
    except nbd.Error as error:
        return errno.errorcode.get(error.errnum, str(error))
    return 'accepted'
";

#[test]
fn nbdinfo_reports_the_features_of_an_export() {
    let (_place, _daemon, uri) = one_volume(64 * MIB, "");
    let info = nbdinfo(&["--json", &uri]);
    assert_eq!(
        (&info["protocol"], &info["TLS"], &info["structured"]),
        (&json!("newstyle-fixed"), &json!(false), &json!(true))
    );
    let mut export = info["exports"][0].clone();
    // The result of file(1) for the content does not matter.
    export.as_object_mut().unwrap().remove("content");
    let expected = json!({
        "export-name": "a/v",
        "description": "volume v of VM a, serial number v",
        "uri": uri,
        "contexts": ["base:allocation"],
        "is_rotational": false,
        "is_read_only": false,
        "can_cache": false,
        "can_df": true,
        "can_fast_zero": true,
        "can_flush": true,
        "can_fua": true,
        "can_multi_conn": true,
        "can_trim": true,
        "can_zero": true,
        "block_size_minimum": 512,
        "block_size_preferred": 4096,
        "block_size_maximum": 32 * MIB,
        "export-size": 64 * MIB,
        "export-size-str": "64M",
    });
    assert_eq!(export, expected);
}

#[test]
fn nbdinfo_reports_read_only_and_buffered_volumes() {
    let place = Place::new();
    let image = place.image("a.img", MIB + 512);
    let volumes = place.volume("a", "r", &image, "read_only = true")
        + &place.volume("a", "b", &image, "read_only = true\ncache = \"buffered\"");
    let _daemon = Daemon::serve(&place, &(place.device("") + &volumes));
    let read_only = &nbdinfo(&["--json", &place.uri("a", "r")])["exports"][0];
    for (key, expected) in [("is_read_only", true), ("can_trim", false), ("can_zero", false), ("can_flush", true)] {
        assert_eq!(read_only[key], expected, "{key}: {read_only}");
    }
    let buffered = &nbdinfo(&["--json", &place.uri("a", "b")])["exports"][0];
    assert_eq!((&buffered["block_size_minimum"], &buffered["export-size"]), (&json!(512), &json!(MIB + 512)));
}

#[test]
fn the_shared_sockets_list_every_volume_and_serve_each_by_name() {
    let (place, address) = (Place::new(), free_address());
    let mut host = place.device("");
    for (vm, size) in [("a", 1), ("b", 2), ("c", 3)] {
        let image = place.image(&format!("{vm}.img"), size * MIB);
        host += &place.volume(vm, "root", &image, "");
    }
    let named = place.socket("named.sock");
    let image = place.image("named.img", 4 * MIB);
    host += &format!(
        "[vm.d.volume.v]\ndevice = \"disk\"\nsource = \"{}\"\nexport = {{ socket = \"{}\", name = \"the name\" }}\n",
        image.display(),
        named.display()
    );
    let shared = place.socket("shared.sock");
    host += &format!("[nbd]\nsocket = \"{}\"\nlisten = \"{address}\"\n", shared.display());
    let _daemon = Daemon::serve(&place, &host);

    let expected = [("a/root", 1), ("b/root", 2), ("c/root", 3), ("the name", 4)];
    let shared = format!("nbd+unix://?socket={}", shared.display());
    for uri in [shared.as_str(), &format!("nbd://{address}")] {
        let listed = nbdinfo(&["--list", "--json", uri]);
        let exports = listed["exports"].as_array().unwrap().iter();
        let listed: Vec<_> =
            exports.map(|e| (e["export-name"].as_str().unwrap(), e["export-size"].as_u64().unwrap() / MIB)).collect();
        assert_eq!(listed, expected);
    }
    for (name, size) in expected {
        let name = name.replace(' ', "%20");
        let printed = run(tool("nbdinfo", "libnbd-bin").args(["--size", &format!("nbd://{address}/{name}")])).ok();
        assert_eq!(printed.trim(), (size * MIB).to_string());
    }
    // A volume's own socket serves it as the default export, and no other volume.
    let own = format!("nbd+unix://?socket={}", named.display());
    assert_eq!(nbdinfo(&["--list", "--json", &own])["exports"].as_array().unwrap().len(), 1);
    assert_eq!(run(tool("nbdinfo", "libnbd-bin").args(["--size", &own])).ok().trim(), (4 * MIB).to_string());
    let other = format!("nbd+unix:///a%2Froot?socket={}", named.display());
    let output = run(tool("nbdinfo", "libnbd-bin").args(["--size", &other])).failed();
    assert!(output.contains("server has no export named 'a/root'"), "{output}");
}

#[test]
fn nbdinfo_maps_holes_and_data() {
    let place = Place::new();
    let image = place.image("a.img", 16 * MIB);
    let file = std::fs::File::options().write(true).open(&image).unwrap();
    for start in [2, 9] {
        file.write_all_at(&noise(start, MIB as usize), start * MIB).unwrap();
    }
    file.sync_all().unwrap();
    let part = "offset = \"1MiB\"\nsize = \"8MiB\"\nread_only = true";
    let volumes = place.volume("a", "all", &image, "read_only = true") + &place.volume("a", "part", &image, part);
    let _daemon = Daemon::serve(&place, &(place.device("") + &volumes));
    let map = |volume| -> Vec<(u64, u64, String)> {
        let map = nbdinfo(&["--map", "--json", &place.uri("a", volume)]);
        let extents = map.as_array().unwrap().iter();
        let number = |extent: &Value, key| extent[key].as_u64().unwrap();
        let text = |extent: &Value| extent["description"].as_str().unwrap().to_owned();
        extents.map(|e| (number(e, "offset") / MIB, number(e, "length") / MIB, text(e))).collect()
    };
    let extent = |offset, length, kind: &str| (offset, length, kind.to_owned());
    let all = [
        extent(0, 2, "hole,zero"),
        extent(2, 1, "data"),
        extent(3, 6, "hole,zero"),
        extent(9, 1, "data"),
        extent(10, 6, "hole,zero"),
    ];
    assert_eq!(map("all"), all);
    assert_eq!(map("part"), [extent(0, 1, "hole,zero"), extent(1, 1, "data"), extent(2, 6, "hole,zero")]);
}

#[test]
fn nbdcopy_reads_back_what_it_wrote() {
    let (place, _daemon, uri) = one_volume(24 * MIB, "");
    let mut content = noise(1, 24 * MIB as usize);
    content[5 * MIB as usize..11 * MIB as usize].fill(0);
    let original = place.write("original", &content);
    let back = place.file("back");
    let nbdcopy = || tool("nbdcopy", "libnbd-bin");
    run(nbdcopy().args(["--flush", "--connections=4"]).arg(&original).arg(&uri)).ok();
    run(nbdcopy().arg("--connections=4").arg(&uri).arg(&back)).ok();
    assert!(std::fs::read(&back).unwrap() == content, "what came back is something else");
    assert!(std::fs::read(place.file("a.img")).unwrap() == content, "the image is something else");
    // Synchronous and without extents: other code paths of nbdcopy and of the daemon.
    std::fs::remove_file(&back).unwrap();
    run(nbdcopy().args(["--synchronous", "--no-extents"]).arg(&uri).arg(&back)).ok();
    assert!(std::fs::read(&back).unwrap() == content, "what came back is something else");
}

#[test]
fn writes_zeroes_and_trims_change_exactly_their_range() {
    let (place, _daemon, uri) = one_volume(16 * MIB, "");
    let output = script(
        &uri,
        "
def extents(count, offset):
    found = []
    h.block_status(count, offset, lambda name, at, entries, error: found.extend(entries) or 0)
    return found
M = 1 << 20
h.pwrite(b'x' * (8 * M), 0, nbd.CMD_FLAG_FUA)
h.flush()
h.zero(M, M)
h.zero(M, 2 * M, nbd.CMD_FLAG_NO_HOLE)
h.zero(M, 3 * M, nbd.CMD_FLAG_FAST_ZERO)
h.zero(M, 4 * M, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_FUA)
h.trim(M, 5 * M)
h.trim(M, 6 * M, nbd.CMD_FLAG_FUA)
h.zero(512, 7 * M + 512)
h.flush()
for block in range(8):
    data = h.pread(M, block * M)
    kind = 'x' if data == b'x' * M else 'zero' if data == bytes(M) else 'mixed'
    print(block, kind)
assert h.pread(1536, 7 * M) == b'x' * 512 + bytes(512) + b'x' * 512
print(extents(9 * M, 0))
print(extents(M, 3 * M))
h.shutdown()
",
    );
    let contents = "0 x\n1 zero\n2 zero\n3 zero\n4 zero\n5 zero\n6 zero\n7 mixed\n";
    let rest = output.strip_prefix(contents).unwrap_or_else(|| panic!("{output}"));
    // A file system also reports allocated zeroes as a hole: they read as zeroes.
    assert_eq!(rest, "[1048576, 0, 6291456, 3, 1048576, 0, 1048576, 3]\n[1048576, 3]\n");
    use std::os::unix::fs::MetadataExt;
    let allocated = std::fs::metadata(place.file("a.img")).unwrap().blocks() * 512;
    assert_eq!(allocated / MIB, 4, "two MiB written, two kept as zeroes; the rest was given back: {allocated}");
}

#[test]
fn structured_and_simple_replies_have_the_same_content() {
    let (_place, _daemon, uri) = one_volume(4 * MIB, "");
    let content = "
pattern = bytes(range(256)) * 4096
assert h.get_structured_replies_negotiated() == STRUCTURED
h.pwrite(pattern, 65536, nbd.CMD_FLAG_FUA)
assert h.pread(len(pattern), 65536) == pattern
chunks = []
data = h.pread_structured(131072, 0, lambda part, at, kind, error: chunks.append((at, len(part), kind)) or 0,
                          nbd.CMD_FLAG_DF if STRUCTURED else 0)
assert data == bytes(65536) + pattern[:65536]
assert chunks == [(0, 131072, nbd.READ_DATA)], chunks
h.zero(4096, 65536); h.trim(4096, 69632); h.flush()
print(refused(h.pread, 4096, 4 << 20), refused(h.pwrite, b'x' * 512, 4 << 20))
assert h.pread(4096, 65536) == bytes(4096)
h.shutdown()
";
    for (wanted, structured) in [("True", "True"), ("False", "False")] {
        let script = format!(
            "{REFUSED}\nSTRUCTURED = {structured}\nh.set_request_structured_replies({wanted})\nh.connect_uri('{uri}')\nh.set_strict_mode(0)\n{content}"
        );
        assert_eq!(nbdsh(&script), "EINVAL ENOSPC\n");
    }
}

#[test]
fn a_client_that_supports_only_export_name_is_served() {
    let (_place, _daemon, uri) = one_volume(MIB, "");
    for flags in ["0", "nbd.HANDSHAKE_FLAG_NO_ZEROES"] {
        let output = nbdsh(&format!(
            "h.set_handshake_flags({flags})\nh.connect_uri('{uri}')\nprint(h.get_protocol(), h.get_size())\n\
             h.pwrite(b'y' * 4096, 8192)\nh.flush()\nassert h.pread(8192, 8192) == b'y' * 4096 + bytes(4096)\nh.shutdown()\n"
        ));
        assert_eq!(output, "newstyle 1048576\n");
    }
    let output = nbdsh(&format!(
        "{REFUSED}\nh.set_handshake_flags(0)\nprint(refused(h.connect_uri, '{}'))",
        uri.replace("/a/v", "/a/none")
    ));
    assert!(!output.contains("accepted"), "{output}");
}

#[test]
fn several_options_can_be_sent_before_an_export_is_chosen() {
    let (_place, _daemon, uri) = one_volume(MIB, "");
    let socket = uri.split_once("socket=").unwrap().1;
    let output = nbdsh(&format!(
        "{REFUSED}
h.set_opt_mode(True)
h.connect_unix('{socket}')
names = []
h.opt_list(lambda name, description: names.append((name, description)) or 0)
print(names)
h.set_export_name('nothing')
print(refused(h.opt_info))
print(refused(h.opt_go))
h.set_full_info(True)
h.set_export_name('')
h.opt_info()
print(h.get_size(), h.get_canonical_export_name(), h.get_export_description())
h.add_meta_context('base:allocation')
contexts = []
h.opt_list_meta_context(lambda name: contexts.append(name) or 0)
print(contexts)
h.opt_go()
print(h.can_meta_context('base:allocation'))
h.shutdown()
"
    ));
    assert_eq!(
        output,
        "[('a/v', 'volume v of VM a, serial number v')]\nENOENT\nENOENT\n1048576 a/v volume v of VM a, serial number v\n['base:allocation']\nTrue\n"
    );
}

#[test]
fn a_flush_covers_writes_of_other_connections() {
    let (place, daemon, uri) = one_volume(4 * MIB, "cache = \"buffered\"");
    // The page cache holds unflushed data; a copy with direct I/O reads only flushed data.
    let output = nbdsh(&format!(
        "
other = nbd.NBD()
other.connect_uri('{uri}')
h.connect_uri('{uri}')
assert h.can_multi_conn() and other.can_multi_conn()
h.pwrite(b'm' * 1048576, 0)
assert other.pread(1048576, 0) == b'm' * 1048576
other.flush()
h.shutdown(); other.shutdown()
"
    ));
    assert_eq!(output, "");
    let direct = run(std::process::Command::new("dd").args(["bs=1M", "count=1", "iflag=direct", "status=none"]).arg({
        let mut argument = std::ffi::OsString::from("if=");
        argument.push(place.file("a.img"));
        argument
    }));
    assert_eq!(direct.ok(), "m".repeat(MIB as usize) + "\n");
    assert_eq!(daemon.accounts().vm("a")["completed"]["flush"], 1);
}

#[test]
fn an_invalid_range_is_rejected_and_the_connection_continues() {
    let (_place, daemon, uri) = one_volume(MIB, "");
    let output = script(
        &uri,
        &format!(
            "{REFUSED}
M = 1 << 20
for offset, length in [(M, 512), (M - 512, 1024), (1 << 62, 512), ((1 << 64) - 512, 512), (7, 512), (512, 7), (0, 0)]:
    status = lambda *ignored: 0
    calls = [refused(h.pread, length, offset), refused(h.pwrite, b'w' * length, offset), refused(h.trim, length, offset),
             refused(h.zero, length, offset), refused(h.block_status, length, offset, status)]
    print(offset, length, *calls)
print(refused(h.cache, 512, 0))
print(refused(h.pwrite, b'w' * 512, 0, nbd.CMD_FLAG_NO_HOLE))
assert h.pread(M, 0) == bytes(M)
h.shutdown()
"
        ),
    );
    let beyond = "EINVAL ENOSPC EINVAL ENOSPC EINVAL";
    let wrong = "EINVAL EINVAL EINVAL EINVAL EINVAL";
    let expected = format!(
        "1048576 512 {beyond}\n1048064 1024 {beyond}\n4611686018427387904 512 {beyond}\n\
         18446744073709551104 512 {beyond}\n7 512 {wrong}\n512 7 {wrong}\n0 0 {wrong}\nEINVAL\nEINVAL\n"
    );
    assert_eq!(output, expected);
    let accounts = daemon.accounts();
    assert_eq!((accounts.number("a", "refused"), accounts.number("a", "protocol_errors")), (37, 0));
}

#[test]
fn a_read_only_export_rejects_every_change() {
    let place = Place::new();
    let content = noise(3, MIB as usize);
    let image = place.write("a.img", &content);
    let host = place.device("") + &place.volume("a", "v", &image, "read_only = true");
    let daemon = Daemon::serve(&place, &host);
    let output = script(
        &place.uri("a", "v"),
        &format!(
            "{REFUSED}
print(h.is_read_only(), refused(h.pwrite, b'w' * 512, 0), refused(h.trim, 512, 0), refused(h.zero, 512, 0))
h.flush()
print(len(h.pread(1048576, 0)))
h.shutdown()
"
        ),
    );
    assert_eq!(output, "True EPERM EPERM EPERM\n1048576\n");
    assert_eq!(daemon.terminate().code(), Some(0));
    assert!(std::fs::read(&image).unwrap() == content);
}

#[test]
fn requests_above_the_maximum_size_are_rejected() {
    let (_place, _daemon, uri) = one_volume(80 * MIB, "");
    let output = script(
        &uri,
        &format!(
            "{REFUSED}
import hashlib
M = 1 << 20
block = b''.join(hashlib.sha256(str(n).encode()).digest() for n in range(M))
assert len(block) == 32 * M
h.pwrite(block, 512)
assert h.pread(32 * M, 512) == block
print(refused(h.pread, 32 * M + 512, 0), refused(h.pwrite, bytes(32 * M + 512), 0))
assert h.pread(4096, 512) == block[:4096]
h.zero(80 * M, 0)
assert h.pread(32 * M, 0) == bytes(32 * M)
many = [h.aio_pread(nbd.Buffer(32 * M), 0) for _ in range(4)]
while not all(map(h.aio_command_completed, list(many))) and h.aio_in_flight() > 0:
    h.poll(-1)
h.shutdown()
"
        ),
    );
    assert_eq!(output, "EOVERFLOW EINVAL\n");
}

#[test]
fn a_buffered_volume_accepts_single_sectors() {
    let (place, daemon, uri) = one_volume(64 * KIB, "cache = \"buffered\"");
    let output = script(
        &uri,
        &format!(
            "{REFUSED}
print(h.get_block_size(nbd.SIZE_MINIMUM))
for at in range(0, 128, 3):
    h.pwrite(bytes([at]) * 512, at * 512)
for at in range(128):
    assert h.pread(512, at * 512) == bytes([at if at % 3 == 0 else 0]) * 512
h.zero(512, 1536); h.trim(512, 3072); h.flush()
assert h.pread(512, 1536) == h.pread(512, 3072) == bytes(512)
print(refused(h.pread, 1, 0), refused(h.pwrite, b'x', 4095))
h.shutdown()
"
        ),
    );
    assert_eq!(output, "512\nEINVAL EINVAL\n");
    assert_eq!(daemon.terminate().code(), Some(0));
    let content = std::fs::read(place.file("a.img")).unwrap();
    assert_eq!((content[9 * 512], content[10 * 512], content.len() as u64), (9, 0, 64 * KIB));
}
