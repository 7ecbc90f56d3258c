//! Devices that are other servers, and volumes there.

use super::*;

const SOURCE: &str = "source = \"/srv/vm/a.img\"";
const NODE: &str = "path = \"nbd+unix:/run/n.sock\"";
const AT_NODE: &str = "source = \"nbd+unix:///a?socket=/run/n.sock\"";

#[test]
fn a_wrong_address_or_export_is_refused_with_what_to_write() {
    let network =
        "Device d: path: nbd://10.0.0.7:10809 is reached without encryption, and without knowing who answers there";
    check(&[
        (PATH, "path = \"nbd://h:x\"", &[(2, "Device d: path: 'nbd://h:x' is no address of an NBD server")]),
        (PATH, "path = \"nbd://localhost:1/a\"", &[(2, "Device d: path: 'nbd://localhost:1/a' names the export 'a'")]),
        (
            PATH,
            "path = [\"/dev/sda\", \"nbd://localhost:1\"]",
            &[(2, "Device d: path: 'nbd://localhost:1' is a server and not a disk")],
        ),
        (SOURCE, AT_NODE, &[(11, "Volume a/v: source: its device is a disk, and the source an export of a server")]),
        (
            SOURCE,
            "source = \"nbd://h\\u0000/a\"",
            &[(11, "Volume a/v: source: 'nbd://h?/a' is no URI of an NBD export")],
        ),
    ]);
    let at = |path: &str, source: &str| refused(&GOOD.replace(PATH, path).replace(SOURCE, source));
    let text = at(NODE, SOURCE);
    assert!(
        text.contains("/srv/vm/a.img is a file, and its device a server") && text.contains("write nbd+unix:///EXPORT"),
        "{text}"
    );
    let text = at(NODE, "source = \"nbd+unix:///a?socket=/run/m.sock\"");
    assert!(text.contains("nbd+unix:/run/m.sock is another server than its device nbd+unix:/run/n.sock"), "{text}");
    let text = at("path = \"nbd://10.0.0.7\"", "source = \"nbd://10.0.0.7/a\"");
    assert!(text.contains(network), "{text}");
    for key in
        ["offset = \"1MiB\"", "size = \"1MiB\"", "cache = \"buffered\"", "format = \"raw\"", "discard = \"ignore\""]
    {
        let text = at(NODE, &format!("{AT_NODE}\n{key}"));
        assert!(text.contains("its device is a server"), "{text}");
    }
    let ignored = found(&GOOD.replace(PATH, &format!("{PATH}\nresend = \"unsafe\"")));
    assert_eq!(ignored, (vec!["Device d: resend is ignored because the device is no server".to_owned()], false));
    let pool = format!("{NODE}\nlatency = \"8ms\"\npool = {{ meeting = \"/m\", host = 1 }}");
    assert!(at(&pool, AT_NODE).contains("Device d: pool: the device is a server"));
}

#[test]
fn a_server_and_an_export_have_one_user() {
    let good = GOOD.replace(PATH, NODE).replace(SOURCE, AT_NODE);
    assert_eq!(found(&good), (vec![], false));
    let network = good.replace("nbd+unix:/run/n.sock", "nbd://10.0.0.7\"\ninsecure = true\nresend = \"unsafe");
    let (warnings, is_refused) = found(&network.replace(AT_NODE, "source = \"nbd://10.0.0.7:10809/a\""));
    assert!(!is_refused && warnings[0].contains("reached without encryption") && warnings.len() == 1, "{warnings:?}");
    let twice = format!("{good}[device.e]\n{NODE}\n");
    assert_eq!(found(&twice).0, ["Device e: path: device d is the same server"]);
    let export = "export = { socket = \"/run/sluice/b.sock\" }";
    let second = format!("{good}[vm.a.volume.w]\ndevice = \"d\"\n{AT_NODE}\n{export}\n");
    let (messages, is_refused) = found(&second);
    assert!(is_refused && messages[0].contains("overlap those of a/v"), "{messages:?}");
    let read = second.replace(AT_NODE, &format!("{AT_NODE}\nread_only = true"));
    assert!(!found(&read).1, "{:?}", found(&read));
}
