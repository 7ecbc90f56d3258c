//! Uplinks: their interfaces, what these carry, and the rights of the daemon.

use rustix::thread::CapabilitySet;
use sluice_config::{Host, Port, Uplink};
use sluice_daemon::preflight::too_long;
use sluice_io::uplink::link::lacking;

use super::Subject;
use sluice_daemon::findings::{Finding, Level};

pub(super) const NAME: &str = "network";

pub(super) fn run(subject: &Subject) -> Vec<Finding> {
    let Some(host) = subject.host.as_ref().filter(|host| !host.uplinks.is_empty()) else { return Vec::new() };
    let mut found: Vec<Finding> = host.uplinks.values().flat_map(|uplink| of_uplink(subject, uplink)).collect();
    found.extend(rights(subject, host));
    if subject.names("dev/net").is_empty() {
        let text = "There is no /dev/net/tun, which bridges, TAPs and containers need";
        found.push(Finding::new(Level::Error, NAME, "", text).fix("modprobe tun"));
    }
    let is_bridge = |uplink: &Uplink| matches!(uplink.port, Port::Bridge(_));
    let passes = subject.read("proc/sys/net/bridge/bridge-nf-call-iptables").is_some_and(|value| value == "1");
    if passes && host.uplinks.values().any(is_bridge) {
        let text =
            "The rules of iptables apply to bridged frames, and see the uplink's port instead of the VM behind it";
        let fix = "sysctl net.bridge.bridge-nf-call-iptables=0, unless the rules are meant for them";
        found.push(Finding::new(Level::Note, NAME, "", text).fix(fix));
    }
    found
}

fn of_uplink(subject: &Subject, uplink: &Uplink) -> Vec<Finding> {
    let (Port::Bridge(name) | Port::Nic(name)) = &uplink.port else { return Vec::new() };
    let about = format!("uplink {}", uplink.link.name);
    let folder = format!("sys/class/net/{name}");
    if subject.names(&folder).is_empty() {
        let text = format!("There is no interface {name}: the uplink is out of service until it exists");
        let fix = format!("make it (`ip link`), or correct its name in [uplink.{}]", uplink.link.name);
        return vec![Finding::new(Level::Error, NAME, &about, text).fix(fix)];
    }
    let mut found = Vec::new();
    let number = |key: &str| subject.read(&format!("{folder}/{key}")).and_then(|text| text.parse::<u64>().ok());
    let is_nic = matches!(uplink.port, Port::Nic(_));
    let state = subject.read(&format!("{folder}/operstate")).unwrap_or_default();
    if state == "down" || state == "lowerlayerdown" {
        let fix = format!("ip link set {name} up; look at its cable and its switch");
        found.push(Finding::new(Level::Warning, NAME, &about, format!("{name} is down")).fix(fix));
    }
    found.extend(number("mtu").and_then(|mtu| too_long(uplink, mtu)));
    let speed = number("speed").filter(|speed| is_nic && *speed > 0).map(|mbit| mbit * 125_000);
    let rate = uplink.link.capacity.bytes.map(sluice_sched::ByteRate::bytes_per_second);
    match (speed, rate) {
        (Some(speed), Some(rate)) if rate > speed => {
            let show = |bytes: u64| sluice_api::amount::bits(8.0 * bytes as f64);
            let text = format!(
                "The link of {name} carries {}, and rate is {}: frames queue in the interface, which does not know weights",
                show(speed),
                show(rate)
            );
            let fix = format!("set rate to at most the speed of the link in [uplink.{}]", uplink.link.name);
            found.push(Finding::new(Level::Warning, NAME, &about, text).fix(fix));
        }
        (_, None) => {
            let text = "The uplink states no rate: frames queue in the interface, in its own order, and reservations are not checked";
            found.push(
                Finding::new(Level::Note, NAME, &about, text).fix("state rate, a little below the speed of the link"),
            );
        }
        _ => {}
    }
    found
}

/// Whether the running daemon has the rights that uplinks need.
fn rights(subject: &Subject, host: &Host) -> Option<Finding> {
    let status = subject.read(&format!("proc/{}/status", subject.daemon?))?;
    let effective = u64::from_str_radix(super::field(&status, "CapEff")?, 16).ok()?;
    let packet_sockets = host.uplinks.values().any(|uplink| matches!(uplink.port, Port::Nic(_)));
    let lacking = lacking(CapabilitySet::from_bits_retain(effective), packet_sockets);
    (!lacking.is_empty()).then(|| {
        let text = format!("The daemon lacks {}, which uplinks and NICs need", lacking.join(" and "));
        let fix = "install contrib/systemd/network.conf as a drop-in of the unit, and restart it";
        Finding::new(Level::Error, NAME, subject.process_name(), text).fix(fix)
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Fake, lines};
    use super::*;

    const HOST: &str = "[uplink.lan]\nnic = \"eth1\"\nrate = \"1Gbit/s\"\nmtu = 1500\n";

    fn with_interface(state: &str, mtu: &str, speed: &str) -> Vec<String> {
        let fake = Fake::new();
        fake.write("dev/net/tun", "");
        for (key, value) in [("operstate", state), ("mtu", mtu), ("speed", speed)] {
            fake.write(&format!("sys/class/net/eth1/{key}"), value);
        }
        lines(&run(&fake.subject(HOST)))
    }

    #[test]
    fn an_interface_that_cannot_carry_what_is_stated_is_found() {
        assert_eq!(with_interface("up", "1500", "1000"), [""; 0]);
        let found = with_interface("down", "1400", "100");
        let starts = ["Warning uplink lan: eth1 is down", "Warning uplink lan: eth1 carries packets of 1400 bytes"];
        starts.iter().zip(&found).for_each(|(start, line)| assert!(line.starts_with(start), "{line}"));
        assert!(found[2].contains("carries 100 Mbit/s, and rate is 1.00 Gbit/s"), "{found:?}");
        // A virtual interface states no speed.
        assert_eq!(with_interface("unknown", "9000", "-1"), [""; 0]);
    }

    #[test]
    fn a_missing_interface_and_missing_rights_are_found() {
        let fake = Fake::new();
        fake.process(9, &["/usr/bin/sluice", "serve", "host.toml"]);
        fake.write("proc/9/status", "Name:\tsluice\nCapEff:\t0000000000001000\n");
        let found = lines(&run(&fake.subject(HOST)));
        assert!(found[0].starts_with("Error uplink lan: There is no interface eth1"), "{found:?}");
        assert!(found[1].contains("The daemon lacks CAP_NET_RAW, which"), "{found:?}");
        assert!(found[2].contains("There is no /dev/net/tun"), "{found:?}");
        assert_eq!(lines(&run(&fake.subject(""))), [""; 0], "a host without uplinks needs none of it");
    }
}
