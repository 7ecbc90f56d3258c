//! The host file of a trial of NICs.

use std::path::{Path, PathBuf};

use sluice_lab::real::nics::{LINK_MBIT, NicTrial, PAYLOAD, System, Weighted};

use super::Plug;
use sluice_testbed::folder::quoted;

/// Bytes of a full frame, and on the wire.
const FRAME: f64 = 1514.0;
const ON_THE_WIRE: f64 = 1538.0;
/// Part of a full frame that is data.
pub(super) const DATA_OF_FRAME: f64 = PAYLOAD as f64 / FRAME;
/// Name of the uplink and of its TAP.
pub(super) const UPLINK: &str = "up0";

/// Name of the TAP of a VM.
pub(super) fn tap(vm: usize) -> String {
    format!("v{vm}")
}

/// Socket of the NIC of a VM.
pub(super) fn socket(folder: &Path, vm: usize) -> PathBuf {
    folder.join(format!("v{vm}.sock"))
}

/// Address of the NIC of a VM.
pub(super) fn mac(vm: usize) -> String {
    format!("52:54:00:00:01:{vm:02x}")
}

/// Returns the host file as it is in a second of the trial.
pub(super) fn text(trial: &NicTrial, plug: Plug, tick_us: u64, folder: &Path, second: usize) -> String {
    let rate = match trial.system {
        // It never waits: the queue behind it has the link's rate.
        System::Netback => String::new(),
        System::Waiting | System::Weighted(_) => format!("rate = \"{LINK_MBIT}Mbit/s\"\n"),
    };
    let scheduler = trial.system.scheduler();
    let mut text =
        format!("[uplink.lan]\ntap = \"{UPLINK}\"\n{rate}scheduler = \"{scheduler}\"\n[uplink.lan.{scheduler}]\n");
    text += &match trial.system {
        System::Netback | System::Waiting => format!("tick = \"{tick_us}us\"\n"),
        System::Weighted(Weighted { unit, delay, hold }) => format!(
            "tick = \"{tick_us}us\"\nrounds = \"published\"\nunit = \"{unit}\"\ndelay = \"{}ms\"\nhold = {hold}\n",
            delay.as_millis()
        ),
    };
    for (number, vm) in trial.vms.iter().enumerate() {
        let name = vm.name;
        text += &format!("[vm.{name}.net]\n");
        if let System::Weighted(_) = trial.system {
            text += &format!("weight = {}\n", vm.weight(second));
        }
        for (key, mbit) in [("limit", vm.limit_mbit), ("reservation", vm.minimum_mbit)] {
            if mbit > 0 {
                text += &format!("{key} = \"{}bit/s\"\n", of_the_wire(mbit));
            }
        }
        let mac = mac(number);
        let port = match plug {
            Plug::Tap => format!("tap = \"{}\"", tap(number)),
            Plug::VhostUser => format!("socket = {}", quoted(&socket(folder, number))),
        };
        text += &format!("[vm.{name}.nic.eth0]\nuplink = \"lan\"\n{port}\nmac = \"{mac}\"\n");
    }
    text
}

/// A rate of full frames, in bit/s of the wire: the daemon also counts the 24 bytes around a frame.
fn of_the_wire(mbit: u64) -> u64 {
    (mbit as f64 * 1e6 * ON_THE_WIRE / FRAME).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_lab::real::nics;

    #[test]
    fn host_files_state_the_policies_of_the_simulation_in_rates_of_the_wire() {
        let folder = Path::new("/tmp/nics");
        for trial in nics::ALL.iter().flat_map(|figure| (figure.trials)(false)) {
            for (plug, second) in [(Plug::Tap, 0), (Plug::VhostUser, 0), (Plug::Tap, trial.seconds - 1)] {
                let text = text(&trial, plug, 4000, folder, second);
                let host = sluice_config::parse("x.toml", &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
                let uplink = &host.uplinks["lan"];
                assert_eq!(uplink.link.capacity.bytes.is_none(), trial.system == System::Netback, "{}", trial.name);
                for vm in &trial.vms {
                    let (policy, due) = (&host.vms[vm.name].net.transmit, vm.policy(second));
                    let weight = |policy: &sluice_sched::Policy| policy.effective_weight().unwrap().as_f64();
                    let is_weighted = matches!(trial.system, System::Weighted(_));
                    assert!(!is_weighted || (weight(policy) - weight(&due)).abs() < 1e-9, "{}", trial.name);
                    let wire = |rate: Option<sluice_sched::ByteRate>| rate.map(|rate| rate.bytes_per_second() as f64);
                    for (stated, frames) in
                        [(policy.limit.bytes, due.limit.bytes), (policy.reservation.bytes, due.reservation.bytes)]
                    {
                        assert_eq!(stated.is_some(), frames.is_some());
                        let (Some(stated), Some(frames)) = (wire(stated), wire(frames)) else { continue };
                        assert!((stated / frames - ON_THE_WIRE / FRAME).abs() < 1e-4, "{}: {stated}", trial.name);
                    }
                }
            }
        }
    }
}
