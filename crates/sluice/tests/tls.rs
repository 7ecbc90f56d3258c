//! NBD with TLS, by clients of others and by a gateway. Certificates are made by openssl.

use std::path::{Path, PathBuf};

use crate::common::raw::Raw;
use crate::common::{Daemon, MIB, Place, free_address, noise, run, sluice, tool};

/// An authority with certificates, each in a folder as QEMU and libnbd want them.
struct Authority(PathBuf);

impl Authority {
    fn new(place: &Place, name: &str) -> Authority {
        let folder = place.file(name);
        std::fs::create_dir(&folder).unwrap();
        let authority = Authority(folder);
        run(authority
            .openssl(&["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"])
            .args(["-subj", "/CN=authority", "-keyout", "ca-key.pem", "-out", "ca-cert.pem"]))
        .ok();
        authority
    }

    fn openssl(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = tool("openssl", "openssl");
        command.current_dir(&self.0).args(arguments);
        command
    }

    /// Makes a certificate for a DNS name and an address with `days` to go, in a folder of its own.
    fn issue(&self, name: &str, address: &str, role: &str, days: &str) -> PathBuf {
        let folder = self.0.join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let request = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=x"];
        run(self.openssl(&request).args(["-keyout", &format!("{name}/{role}-key.pem"), "-out", "request.pem"])).ok();
        std::fs::write(self.0.join("names"), format!("subjectAltName = DNS:{name}, IP:{address}")).unwrap();
        let sign = ["x509", "-req", "-in", "request.pem", "-CA", "ca-cert.pem", "-CAkey", "ca-key.pem"];
        let out = format!("{name}/{role}-cert.pem");
        run(self.openssl(&sign).args(["-CAcreateserial", "-extfile", "names", "-days", days, "-out", &out])).ok();
        std::fs::copy(self.0.join("ca-cert.pem"), folder.join("ca-cert.pem")).unwrap();
        folder
    }
}

fn tls(server: &Path, clients: &str) -> String {
    let file = |name: &str| server.join(name).display().to_string();
    format!(
        "[nbd.tls]\ncertificate = \"{}\"\nkey = \"{}\"\nclient_ca = \"{}\"\n{clients}",
        file("server-cert.pem"),
        file("server-key.pem"),
        file("ca-cert.pem")
    )
}

fn clients_are_told_what_they_need(place: &Place, host: &str) {
    let file = place.write(
        "told.toml",
        host.replace(&format!("socket = \"{}\"", place.volume_socket("a", "v").display()), "listen = \"10.0.0.1:99\""),
    );
    let told = |format: &str| run(sluice().args(["export", format, "a"]).arg(&file)).ok();
    for (format, part) in
        [("qemu-args", "tls-creds=sluice-tls"), ("libvirt-xml", "tls='yes'"), ("nbd-uri", "nbds://10.0.0.1:99/a/v")]
    {
        let text = told(format);
        assert!(text.contains(part), "{format}: {text}");
    }
}

#[test]
fn clients_of_others_read_over_tls_what_their_certificates_open() {
    let place = Place::new();
    let (authority, address) = (Authority::new(&place, "pki"), free_address());
    let (ip, port) = address.rsplit_once(':').unwrap();
    let server = authority.issue("node", ip, "server", "20");
    let (one, other) =
        (authority.issue("host1", "127.0.0.1", "client", "30"), authority.issue("host2", "127.0.0.1", "client", "30"));
    let stranger = Authority::new(&place, "strange").issue("host1", "127.0.0.1", "client", "30");
    // It trusts the server, which does not trust it.
    std::fs::copy(one.join("ca-cert.pem"), stranger.join("ca-cert.pem")).unwrap();
    let clients = "[nbd.tls.client.host1]\nexports = [\"a/*\"]\n";
    let (a, b) = (place.image("a.img", 4 * MIB), place.image("b.img", 4 * MIB));
    let volumes = place.device("") + &place.volume("a", "v", &a, "") + &place.volume("b", "v", &b, "");
    let nbd = format!("[nbd]\nlisten = \"{address}\"\n");
    let host = place.control_keys() + &nbd + &tls(&server, clients) + &volumes;
    let daemon = Daemon::serve(&place, &host);
    let uri = |export: &str, certificates: &Path| {
        format!("nbds://{address}/{export}?tls-certificates={}", certificates.display())
    };
    let size = |uri: &str| run(tool("nbdinfo", "libnbd-bin").args(["--size", uri]));
    assert_eq!(size(&uri("a/v", &one)).ok().trim(), (4 * MIB).to_string());
    let listed = run(tool("nbdinfo", "libnbd-bin").args(["--list", &uri("", &one)])).ok();
    assert!(listed.contains("export=\"a/v\"") && !listed.contains("b/v"), "{listed}");
    assert!(size(&uri("b/v", &one)).failed().contains("no export named 'b/v'"));
    size(&uri("a/v", &other)).failed();
    daemon.stderr().up_to(&["the client's certificate has none of the names"]);
    size(&uri("a/v", &stranger)).failed();
    daemon.stderr().up_to(&["TLS failed: invalid peer certificate"]);
    assert!(size(&format!("nbd://{address}/a/v")).failed().contains("requires TLS"));
    // By a program for each of two TLS libraries, and read again without TLS.
    let data = place.write("data", noise(7, 4 * MIB as usize));
    run(tool("nbdcopy", "libnbd-bin").arg(&data).arg(uri("a/v", &one))).ok();
    let credentials = format!("tls-creds-x509,id=t,endpoint=client,dir={}", one.display());
    let image = format!("driver=nbd,host={ip},port={port},export=a/v,tls-creds=t");
    let copy = place.file("copy");
    run(tool("qemu-img", "qemu-utils")
        .args(["convert", "--object", &credentials, "--image-opts", &image, "-O", "raw"])
        .arg(&copy))
    .ok();
    assert!(std::fs::read(&copy).unwrap() == std::fs::read(&data).unwrap());
    let mut plain = Raw::open(&place.volume_socket("a", "v"), "a/v").unwrap();
    assert!(plain.read(0, 4096).unwrap() == std::fs::read(&data).unwrap()[..4096]);
    clients_are_told_what_they_need(&place, &host);
    // Another certificate is in force after a reload, and connections stay.
    let next = authority.issue("node2", "127.0.0.1", "server", "20");
    daemon.accept(&host.replace(&server.display().to_string(), &next.display().to_string()));
    size(&uri("a/v", &one)).failed();
    plain.read(0, 4096).unwrap();
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn a_gateway_reads_over_tls_and_tells_what_is_wrong_with_a_certificate() {
    let place = Place::new();
    let authority = Authority::new(&place, "pki");
    let (server, client) =
        (authority.issue("node1", "127.0.0.1", "server", "10"), authority.issue("gw1", "127.0.0.1", "client", "30"));
    let address = free_address();
    let image = place.image("a.img", 4 * MIB);
    let nbd = format!("[nbd]\nlisten = \"{address}\"\n");
    let node_host = nbd + &tls(&server, "") + &place.device("") + &place.volume("a", "v", &image, "");
    let _node = Daemon::serve(&place, &(place.control_keys() + &node_host));
    let gateway_place = Place::new();
    let host = |name: &str| {
        let file = |file: &str| client.join(file).display().to_string();
        format!(
            "{}[device.node1]\npath = \"nbd://{address}\"\n\
             tls = {{ ca = \"{}\", name = \"{name}\", certificate = \"{}\", key = \"{}\" }}\n\
             [vm.a.volume.w]\ndevice = \"node1\"\nsource = \"nbd://{address}/a/v\"\nexport = {{ socket = \"{}\" }}\n",
            gateway_place.control_keys(),
            file("ca-cert.pem"),
            file("client-cert.pem"),
            file("client-key.pem"),
            gateway_place.volume_socket("a", "w").display(),
        )
    };
    let daemon = Daemon::serve(&gateway_place, &host("node1"));
    let mut raw = Raw::open(&gateway_place.volume_socket("a", "w"), "a/w").unwrap();
    let data = noise(3, 300 << 10);
    raw.write(MIB, &data).unwrap();
    raw.flush().unwrap();
    assert_eq!(raw.read(MIB, 300 << 10).unwrap(), data);
    assert_eq!(daemon.terminate().code(), Some(0));
    let checked =
        |text: &str| run(sluice().args(["check", "--host"]).arg(gateway_place.write("checked.toml", text))).stdout;
    let text = checked(&host("node2"));
    assert!(text.contains("TLS failed: invalid peer certificate: certificate not valid for name \"node2\""), "{text}");
    let text = checked(&host("node1").replace("gw1/client-key.pem", "ca-key.pem"));
    assert!(text.contains("certificate and key do not fit"), "{text}");
    let ending = run(sluice().args(["check", "--host"]).arg(place.file("host.toml"))).stdout;
    assert!(ending.contains("warning  tls ([nbd.tls]): The certificate ends on"), "{ending}");
}
