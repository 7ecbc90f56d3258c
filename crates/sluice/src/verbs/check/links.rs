//! What `sluice check` says of uplinks and NICs.

use serde_json::{Value, json};
use sluice_config::changes::Target;
use sluice_config::{Host, Nic, NicAccess, Receive, Uplink, Vm};
use sluice_sched::policy::Field;
use sluice_sched::units::{show_duration, show_link_rate};
use sluice_sched::{ByteRate, Policy};

use crate::output;

/// A VM or one of its NICs, with its policy on an uplink.
struct Held<'a> {
    name: String,
    uplink: &'a Uplink,
    /// `None`: the VM.
    nic: Option<&'a Nic>,
    policy: &'a Policy,
    burst: Option<std::time::Duration>,
}

impl Held<'_> {
    fn is_enforced(&self, field: Field) -> bool {
        let link = &self.uplink.link;
        match self.nic {
            None => link.scheduler.enforces_with(field, &link.params),
            Some(_) => link.scheduler.enforces_inside_with(field, &link.params),
        }
    }

    /// Its stated fields, and whether each is enforced. A latency target is measured.
    fn fields(&self) -> Vec<(Field, String, bool)> {
        let rate = |rate: Option<ByteRate>| rate.map_or_else(String::new, show_link_rate);
        let stated = self.policy.stated().map(|field| {
            let value = match field {
                Field::Reservation => rate(self.policy.reservation.bytes),
                Field::Limit => rate(self.policy.limit.bytes),
                Field::Weight => self.policy.weight.map_or_else(|| "none".to_owned(), |weight| weight.to_string()),
                Field::Burst => self.burst.map_or_else(String::new, show_duration),
                Field::Latency => self.policy.latency.map_or_else(String::new, |target| show_duration(target.p99)),
                _ => String::new(),
            };
            (field, value, self.is_enforced(field))
        });
        stated.collect()
    }

    /// The fields in words; `-` if only the default weight holds.
    fn words(&self) -> String {
        let word = |(field, value, enforced): &(Field, String, bool)| {
            let how = match (enforced, field) {
                (true, _) => "",
                (false, Field::Latency) => " (measured; segments are cut by it)",
                (false, _) => " (not enforced)",
            };
            format!("{} {value}{how}", field.name())
        };
        let words: Vec<String> = self.fields().iter().map(word).collect();
        if words.is_empty() { "-".to_owned() } else { words.join(", ") }
    }

    fn json(&self) -> Value {
        let fields = self.fields();
        let stated: serde_json::Map<_, _> =
            fields.iter().map(|(field, value, _)| (field.name().to_owned(), json!(value))).collect();
        let names = |wanted: bool| -> Vec<_> {
            let some = fields.iter().filter(|(_, _, enforced)| *enforced == wanted);
            some.map(|(field, ..)| field.name()).collect()
        };
        let mut value = json!({
            "name": self.name,
            "uplink": self.uplink.link.name,
            "policy": stated,
            "enforced": names(true),
            "not_enforced": names(false),
        });
        if let Some(nic) = self.nic {
            value["mac"] = json!(nic.mac.to_string());
            value["access"] = json!(access(nic));
            value["receive_limit"] = json!(nic.policy.receive.limit.map(show_link_rate));
        }
        value
    }
}

/// The VMs with NICs on an uplink, each before its NICs.
fn held(host: &Host) -> Vec<Held<'_>> {
    let mut all = Vec::new();
    for vm in host.vms.values() {
        for uplink in host.uplinks.values().filter(|uplink| uses(vm, uplink)) {
            let (policy, burst) = (&vm.net.transmit, vm.net.burst);
            all.push(Held { name: vm.name.clone(), uplink, nic: None, policy, burst });
            for nic in vm.nics.values().filter(|nic| nic.uplink == uplink.link.name) {
                let (name, policy) = (Target::nic(&vm.name, &nic.name).to_string(), &nic.policy.transmit);
                all.push(Held { name, uplink, nic: Some(nic), policy, burst: nic.policy.burst });
            }
        }
    }
    all
}

fn uses(vm: &Vm, uplink: &Uplink) -> bool {
    vm.nics.values().any(|nic| nic.uplink == uplink.link.name)
}

/// The VMs of an uplink, the number of its NICs, and what is reserved.
fn promised<'a>(host: &'a Host, uplink: &'a Uplink) -> (Vec<&'a Vm>, usize, u64) {
    let vms: Vec<&Vm> = host.vms.values().map(AsRef::as_ref).filter(|vm| uses(vm, uplink)).collect();
    let nics = vms.iter().flat_map(|vm| vm.nics.values()).filter(|nic| nic.uplink == uplink.link.name).count();
    let rates = vms.iter().filter_map(|vm| vm.net.transmit.reservation.bytes);
    let reserved = rates.map(ByteRate::bytes_per_second).fold(0, u64::saturating_add);
    (vms, nics, reserved)
}

/// Adds `uplinks` and `nics` to the output.
pub(super) fn add_json(result: &mut Value, host: &Host) {
    let uplinks: Vec<Value> = host
        .uplinks
        .values()
        .map(|uplink| {
            let (vms, nics, reserved) = promised(host, uplink);
            let supply = uplink.link.supply();
            json!({
                "uplink": uplink.link.name,
                "port": uplink.port.key(),
                "interface": uplink.port.interface(),
                "scheduler": uplink.link.scheduler.name,
                "rate_bytes_per_second": uplink.link.capacity.bytes.map(ByteRate::bytes_per_second),
                "reserved_bytes_per_second": reserved,
                "reserved_percent": output::percent(supply.reserved(vms.iter().map(|vm| &vm.net.transmit))),
                "reservable_percent": uplink.link.reservable.hundredths() as f64 / 100.0,
                "vms": vms.len(),
                "nics": nics,
            })
        })
        .collect();
    result["uplinks"] = json!(uplinks);
    result["nics"] = held(host).iter().map(Held::json).collect();
}

pub(super) fn print(host: &Host) {
    if host.uplinks.is_empty() {
        return;
    }
    let mut table = output::table(&["UPLINK", "PORT", "SCHEDULER", "VMS", "NICS", "RATE", "RESERVED", "RESERVABLE"]);
    for uplink in host.uplinks.values() {
        let (vms, nics, reserved) = promised(host, uplink);
        let part = uplink.link.supply().reserved(vms.iter().map(|vm| &vm.net.transmit));
        let part = part.map_or_else(String::new, |part| format!(" ({part})"));
        let reserved = if reserved == 0 { "0".to_owned() } else { show_link_rate(ByteRate::per_second(reserved)) };
        table.add_row([
            uplink.link.name.clone(),
            format!("{} {}", uplink.port.key(), uplink.port.interface()),
            uplink.link.scheduler.name.to_owned(),
            vms.len().to_string(),
            nics.to_string(),
            uplink.link.capacity.bytes.map_or_else(|| "not stated".to_owned(), show_link_rate),
            reserved + &part,
            uplink.link.reservable.to_string(),
        ]);
    }
    output::line(&table.to_string());
    let mut table = output::table(&["VM OR NIC", "UPLINK", "ACCESS", "MAC", "SENDS", "RECEIVES"]);
    for held in held(host) {
        table.add_row([
            held.name.clone(),
            held.uplink.link.name.clone(),
            held.nic.map_or_else(String::new, access),
            held.nic.map_or_else(String::new, |nic| nic.mac.to_string()),
            held.words(),
            held.nic.map_or_else(String::new, |nic| receives(&nic.policy.receive)),
        ]);
    }
    output::line(&table.to_string());
}

fn access(nic: &Nic) -> String {
    match &nic.access {
        NicAccess::VhostUser { endpoint, .. } => {
            endpoint.socket().map_or_else(String::new, |path| path.display().to_string())
        }
        NicAccess::Tap(name) => format!("tap {name}"),
    }
}

fn receives(receive: &Receive) -> String {
    let limit = receive.limit.map(|rate| format!("limit {}", show_link_rate(rate)));
    let weight = receive.weight.map(|weight| format!("weight {weight}"));
    let words: Vec<String> = limit.into_iter().chain(weight).collect();
    if words.is_empty() { "-".to_owned() } else { words.join(", ") }
}
