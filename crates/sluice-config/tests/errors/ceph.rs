//! Devices that are pools of Ceph clusters, and volumes there.

use super::*;

const SOURCE: &str = "source = \"/srv/vm/a.img\"";
const POOL: &str = "path = \"rbd:vms\"";
const IMAGE: &str = "source = \"rbd:vms/a\"";

#[test]
fn a_wrong_pool_or_image_is_refused_with_what_to_write() {
    check(&[
        (PATH, "path = \"rbd:\"", &[(2, "Device d: path: 'rbd:' is no pool of a Ceph cluster")]),
        (PATH, "path = \"rbd:a/b/c\"", &[(2, "Device d: path: 'rbd:a/b/c' is no pool of a Ceph cluster")]),
        (
            PATH,
            "path = [\"/dev/sda\", \"rbd:vms\"]",
            &[(2, "Device d: path: 'rbd:vms' is a pool of a Ceph cluster and not a disk")],
        ),
        (SOURCE, IMAGE, &[(11, "Volume a/v: source: its device is a disk, and the source an RBD image")]),
        (SOURCE, "source = \"rbd:vms/a@s\"", &[(11, "Volume a/v: source: 'rbd:vms/a@s' names a snapshot")]),
    ]);
    let at = |path: &str, source: &str| refused(&GOOD.replace(PATH, path).replace(SOURCE, source));
    let text = at(POOL, SOURCE);
    assert!(
        text.contains("it is no RBD image, and its device a pool") && text.contains("write rbd:vms/IMAGE"),
        "{text}"
    );
    let text = at(POOL, "source = \"rbd:vms/tenant/a\"");
    assert!(text.contains("rbd:vms/tenant is another pool than its device rbd:vms"), "{text}");
    let text = at("path = \"nbd+unix:/run/n.sock\"", IMAGE);
    assert!(text.contains("rbd:vms/a is an RBD image, and its device a server"), "{text}");
    for key in ["offset = \"1MiB\"", "cache = \"buffered\"", "format = \"raw\""] {
        assert!(at(POOL, &format!("{IMAGE}\n{key}")).contains("its device is a pool"), "{key}");
    }
    let text = at(&format!("{POOL}\nceph_user = \"client.admin\""), IMAGE);
    assert!(text.contains("write the name without client. in front"), "{text}");
}

#[test]
fn a_pool_and_an_image_have_one_user_and_the_whole_seal_none() {
    let good = GOOD.replace(PATH, POOL).replace(SOURCE, IMAGE);
    assert_eq!(found(&good), (vec![], false));
    assert_eq!(found(&format!("{good}[device.e]\n{POOL}\n")).0, ["Device e: path: device d is the same pool"]);
    let other = format!("{good}[device.e]\n{POOL}\nceph_conf = \"/etc/ceph/other.conf\"\n");
    assert_eq!(found(&other), (vec![], false), "another cluster may have a pool of the same name");
    let export = "export = { socket = \"/run/sluice/b.sock\" }";
    let second = format!("{good}[vm.a.volume.w]\ndevice = \"d\"\n{IMAGE}\n{export}\n");
    assert_eq!(found(&second).0, ["Volume a/w: its bytes of rbd:vms/a overlap those of a/v"]);
    let ignored = found(&GOOD.replace(PATH, &format!("{PATH}\nceph_user = \"x\"")));
    let text = "Device d: ceph_user is ignored because the device is no pool of a Ceph cluster";
    assert_eq!(ignored, (vec![text.to_owned()], false));
    let ignored = found(&good.replace(POOL, &format!("{POOL}\nresend = \"unsafe\"")));
    assert_eq!(ignored, (vec!["Device d: resend is ignored because the device is no server".to_owned()], false));
    let text = refused(&format!("{good}[daemon]\njail = \"required\"\n"));
    assert!(text.contains("Device d: path: librbd does what the seal forbids"), "{text}");
}
