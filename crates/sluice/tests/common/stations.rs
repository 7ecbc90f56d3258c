//! A laboratory for uplinks: namespaces for VMs, for the daemon and for the world outside.
//!
//! ```text
//!     vm1 [eth0] --TAP--+
//!     vm2 [eth0] --TAP--+-- switch: the daemon --[uplink]-- [eth0] outside 10.77.0.100
//!     vmN [eth0] --TAP--+
//! ```
//!
//! VM number N, from 1, has the address 10.77.0.N, and the TAP of its NIC becomes its `eth0`.

use serde_json::Value;
use sluice_client::net::traffic::{Probe, Sender, Sink};
use sluice_client::net::{DATAGRAM, FRAME, Namespace};
pub(crate) use sluice_client::net::{OUTSIDE, address, outside};

use super::{Daemon, Ended, Place, run, sluice, until};

/// How the daemon is connected to the outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Uplink {
    /// A TAP of the daemon, which is moved to the outside.
    Tap,
    /// A pair of virtual interfaces; the daemon has a packet socket on its end.
    Nic,
    /// The same pair, with the daemon's end and a TAP of the daemon in a bridge.
    Bridge,
}

/// A daemon with stations. It ends first when this is dropped.
pub(crate) struct Lab {
    pub(crate) daemon: Daemon,
    pub(crate) vms: Vec<Namespace>,
    pub(crate) outside: Namespace,
    pub(crate) switch: Namespace,
    pub(crate) place: Place,
}

impl Lab {
    /// Starts a daemon with one VM for each of `policies`, the lines of the VM's table `net`.
    pub(crate) fn new(uplink: Uplink, rate: &str, policies: &[&str]) -> Lab {
        let nics = vec![""; policies.len()];
        Lab::with_nics(uplink, &format!("rate = \"{rate}\""), policies, &nics)
    }

    /// As [`Lab::new`] with lines for the uplink and for each NIC.
    pub(crate) fn with_nics(uplink: Uplink, lines: &str, policies: &[&str], nics: &[&str]) -> Lab {
        Lab::with_host(uplink, lines, policies, nics, |_| String::new())
    }

    /// As [`Lab::with_nics`], with more lines of the host file, of which the first are those of `[daemon]`.
    pub(crate) fn with_host(
        uplink: Uplink,
        lines: &str,
        policies: &[&str],
        nics: &[&str],
        more: impl FnOnce(&Place) -> String,
    ) -> Lab {
        let place = Place::new();
        let (switch, outside) = (namespace("switch"), namespace("outside"));
        if uplink != Uplink::Tap {
            switch.connect("up0", &outside).unwrap();
            outside.up("eth0", &format!("{OUTSIDE}/24")).unwrap();
        }
        if uplink == Uplink::Bridge {
            switch.bridge("up0").unwrap();
        }
        let port = match uplink {
            Uplink::Tap => "tap = \"up0\"",
            Uplink::Nic => "nic = \"up0\"",
            Uplink::Bridge => "bridge = \"br0\"",
        };
        let mut host = format!("{}{}[uplink.lan]\n{port}\n{lines}\n", place.control_keys(), more(&place));
        for (number, (policy, nic)) in (1..).zip(policies.iter().zip(nics)) {
            host += &format!(
                "[vm.vm{number}.net]\n{policy}\n[vm.vm{number}.nic.eth0]\nuplink = \"lan\"\ntap = \"v{number}\"\n{nic}\n"
            );
        }
        let daemon = Daemon::serve_by(&place, &host, |command| switch.command(command));
        if uplink == Uplink::Tap {
            switch.move_to("up0", &outside, "eth0").unwrap();
            outside.up("eth0", &format!("{OUTSIDE}/24")).unwrap();
        }
        let lab = Lab {
            daemon,
            vms: (1..=policies.len()).map(|n| namespace(&format!("vm{n}"))).collect(),
            outside,
            switch,
            place,
        };
        for (number, vm) in (1..).zip(&lab.vms) {
            lab.switch.move_to(&format!("v{number}"), vm, "eth0").unwrap();
            vm.up("eth0", &format!("{}/24", address(number))).unwrap();
        }
        lab
    }

    /// Asks the daemon by a verb of the command line.
    pub(crate) fn ask(&self, verb: &[&str]) -> Ended {
        run(sluice().args(["-o", "json"]).args(verb).arg("--socket").arg(self.place.socket("control")))
    }

    /// Changes a VM or a NIC while the daemon runs.
    pub(crate) fn set(&self, target: &str, fields: &[&str]) -> Value {
        serde_json::from_str(&self.ask(&[&["set", target], fields].concat()).ok()).unwrap()
    }

    /// Datagrams of full frames from a VM to the port `7000 + number`, `mbit` Mbit/s on the wire.
    pub(crate) fn send(&self, number: u8, mbit: u64) -> Sender {
        Sender::udp(self.vm(number), outside(7000 + u16::from(number)), DATAGRAM, mbit * 125_000 / FRAME).unwrap()
    }

    /// What arrives outside of [`Lab::send`].
    pub(crate) fn sink(&self, number: u8) -> Sink {
        Sink::udp(&self.outside, 7000 + u16::from(number)).unwrap()
    }

    pub(crate) fn vm(&self, number: u8) -> &Namespace {
        &self.vms[usize::from(number) - 1]
    }

    /// Waits until a VM and the outside reach one another, so that no first frame is lost while a neighbour is looked for.
    pub(crate) fn reach(&self, number: u8) -> Probe {
        let mut probe = Probe::new(self.vm(number), outside(7)).unwrap();
        until("the VM reaches the outside", || probe.ask().is_ok_and(|answer| answer.is_some()));
        probe
    }
}

pub(crate) fn namespace(label: &str) -> Namespace {
    Namespace::new(label).unwrap_or_else(|error| panic!("{error}"))
}

/// Parts of what arrives at sinks, from `skip` bytes in total until `count` more have arrived: each between 0 and 1.
pub(crate) fn shares(sinks: &[&Sink], skip: u64, count: u64) -> Vec<f64> {
    let all = || sinks.iter().map(|sink| sink.bytes()).collect::<Vec<_>>();
    let reach = |bytes: u64| {
        until("traffic arrives", || all().iter().sum::<u64>() >= bytes);
        all()
    };
    let begin: u64 = all().iter().sum();
    let first = reach(begin + skip);
    let last = reach(first.iter().sum::<u64>() + count);
    let part: Vec<u64> = first.iter().zip(&last).map(|(first, last)| last - first).collect();
    let sum: u64 = part.iter().sum();
    part.into_iter().map(|part| part as f64 / sum as f64).collect()
}

/// Checks parts of a link, with a margin of 5 % of it.
#[track_caller]
pub(crate) fn assert_shares(got: &[f64], expected: &[f64]) {
    let off = got.iter().zip(expected).map(|(got, expected)| (got - expected).abs()).fold(0.0, f64::max);
    assert!(off < 0.05, "got {got:.3?}, expected {expected:.3?}");
}
