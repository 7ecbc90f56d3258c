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

const GATEWAY: &str = "gateway = { name = \"gw1\", key_file = \"/k\" }";

#[test]
fn the_policies_of_vms_behind_a_gateway_are_those_of_the_node() {
    let base = GOOD.replace(SOURCE, AT_NODE).replace("policy = \"p\"\n", "");
    let with = |line: &str| refused(&base.replace(PATH, &format!("{NODE}\n{GATEWAY}\n{line}")));
    let good = base.replace(PATH, &format!("{NODE}\n{GATEWAY}"));
    assert_eq!(found(&good), (vec![], false));
    assert!(with("scheduler = \"mclock\"").contains("Device d: scheduler: its node enforces the policies of VMs"));
    assert!(with("resend = \"unsafe\"").contains("Device d: resend: a gateway sends everything again"));
    let policy = refused(&good.replace("[vm.a]\n", "[vm.a]\nreservation = \"1 iops\"\n"));
    assert!(
        policy.contains("reservation has no effect on device d: its node enforces the policies of VMs"),
        "{policy}"
    );
    let missing = refused(&good.replace("name = \"gw1\", ", ""));
    assert!(missing.contains("gateway.name is missing") && missing.contains("add name = \"gw1\""), "{missing}");
}

#[test]
fn a_node_has_a_name_if_it_has_gateways() {
    let gateway = "[nbd]\n[nbd.gateway.gw1]\nkey_file = \"/k\"\nvms = \"*\"\n";
    let text = refused(&format!("{GOOD}{gateway}"));
    assert!(text.contains("nbd.node is missing, which gateways need"), "{text}");
    let named = format!("{GOOD}{}", gateway.replace("[nbd]\n", "[nbd]\nnode = \"n\"\n"));
    assert_eq!(found(&named), (vec![], false));
    assert!(refused(&named.replace("\"*\"", "3")).contains("a list of names, or \"*\""));
    assert!(refused(&named.replace("vms = \"*\"", "")).contains("[nbd.gateway.gw1]: vms is missing"));
}

#[test]
fn an_address_that_other_hosts_reach_is_allowed_with_tls() {
    let network = format!("{GOOD}[nbd]\nlisten = \"10.0.0.1:10809\"\n");
    assert!(refused(&network).contains("[nbd]: any client that reaches 10.0.0.1:10809 can read and write the volumes"));
    let tls = format!("{network}[nbd.tls]\ncertificate = \"/c\"\nkey = \"/k\"\n");
    assert_eq!(found(&tls), (vec![], false));
    let client = format!("{tls}[nbd.tls.client.host3]\nexports = [\"a/*\"]\n");
    assert!(refused(&client).contains("client_ca is missing, which clients need"));
    let at = |line: &str| {
        let device = format!("path = \"nbd://10.0.0.7\"\n{line}");
        GOOD.replace(PATH, &device).replace(SOURCE, "source = \"nbd://10.0.0.7/a\"")
    };
    assert_eq!(found(&at("tls = { ca = \"/ca\" }")), (vec![], false));
    assert!(refused(&at("tls = { name = \"n\" }")).contains("tls.ca is missing"));
    assert!(refused(&at("tls = { ca = \"/ca\", key = \"/k\" }")).contains("certificate is missing, which key needs"));
    let socket = GOOD.replace(PATH, &format!("{NODE}\ntls = {{ ca = \"/ca\" }}")).replace(SOURCE, AT_NODE);
    assert!(refused(&socket).contains("Device d: tls: its server has no TCP address"));
}
