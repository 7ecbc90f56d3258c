use core::num::NonZeroU32;

use super::*;
use crate::parse;
use proptest::prelude::*;

const GATEWAY: Mac = Mac([0x52, 0, 0, 0, 0, 0xfe]);

fn mac(number: u8) -> Mac {
    Mac([0x52, 0, 0, 0, 0, number])
}

fn flood(rate: u32) -> FloodLimit {
    let rate = NonZeroU32::new(rate).unwrap();
    FloodLimit { frames_per_second: rate, burst: rate }
}

fn limits() -> Limits {
    Limits {
        ports: 16,
        addresses_per_port: 8,
        addresses_of_uplink: 64,
        age: Duration::from_secs(300),
        port_flood: flood(1_000_000),
        uplink_flood: flood(1_000_000),
        copies: CopyLimit { per_second: NonZeroU32::MAX, burst: NonZeroU32::MAX },
    }
}

fn frame(source: Mac, destination: Mac) -> Frame {
    parse(&[&destination.0[..], &source.0, &[0x12, 0x34], &[0; 46]].concat(), 60).unwrap()
}

fn tagged(source: Mac, destination: Mac, vlan: u16) -> Frame {
    let bytes = [&destination.0[..], &source.0, &[0x81, 0], &vlan.to_be_bytes(), &[0x12, 0x34], &[0; 46]].concat();
    parse(&bytes, 64).unwrap()
}

fn seconds(seconds: u64) -> Instant {
    Instant::from_millis(seconds * 1_000)
}

/// Ports 1 and 2 locked to their address, port 3 without.
fn switch() -> Switch {
    let mut switch = Switch::new(Instant::ZERO, limits());
    switch.add(Instant::ZERO, Port(1), Some(mac(1)), None).unwrap();
    switch.add(Instant::ZERO, Port(2), Some(mac(2)), None).unwrap();
    switch.add(Instant::ZERO, Port(3), None, None).unwrap();
    switch
}

fn flooded(switch: &Switch, from: Option<Port>, frame: &Frame) -> Vec<u32> {
    switch.flooded(from, frame).map(|port| port.0).collect()
}

#[test]
fn the_example_holds() {
    let (mut switch, now) = (switch(), Instant::ZERO);
    assert_eq!(switch.from_port(now, Port(1), &frame(mac(1), mac(2))), Target::Port(Port(2)));
    let unknown = frame(mac(1), GATEWAY);
    assert_eq!(switch.from_port(now, Port(1), &unknown), Target::Flood);
    assert_eq!(flooded(&switch, Some(Port(1)), &unknown), [3], "the address cannot be that of a locked port");
    assert_eq!(switch.from_uplink(now, &frame(GATEWAY, mac(1))), Target::Port(Port(1)));
    assert_eq!(switch.from_port(now, Port(1), &unknown), Target::Uplink);
}

#[test]
fn a_broadcast_goes_to_all_but_its_sender() {
    let (mut switch, now) = (switch(), Instant::ZERO);
    let from_port = frame(mac(2), Mac::BROADCAST);
    assert_eq!(switch.from_port(now, Port(2), &from_port), Target::Flood);
    assert_eq!(flooded(&switch, Some(Port(2)), &from_port), [1, 3]);
    let from_uplink = frame(GATEWAY, Mac::BROADCAST);
    assert_eq!(switch.from_uplink(now, &from_uplink), Target::Flood);
    assert_eq!(flooded(&switch, None, &from_uplink), [1, 2, 3]);
}

#[test]
fn an_unknown_address_is_not_flooded_where_every_port_is_locked() {
    let (mut switch, now) = (switch(), Instant::ZERO);
    switch.remove(Port(3));
    assert_eq!(switch.from_port(now, Port(1), &frame(mac(1), GATEWAY)), Target::Uplink);
    assert_eq!(switch.from_uplink(now, &frame(GATEWAY, mac(9))), Target::Nowhere(Drop::NoReceiver));
}

#[test]
fn a_locked_address_is_never_learned_elsewhere() {
    let (mut switch, now) = (switch(), Instant::ZERO);
    assert_eq!(switch.from_port(now, Port(3), &frame(mac(1), mac(2))), Target::Nowhere(Drop::SourceMac));
    assert_eq!(switch.from_port(now, Port(2), &frame(mac(1), mac(3))), Target::Nowhere(Drop::SourceMac));
    assert_eq!(switch.from_port(now, Port(2), &frame(mac(9), mac(3))), Target::Nowhere(Drop::SourceMac));
    // A loop outside returns the NIC's own frame.
    assert_eq!(switch.from_uplink(now, &frame(mac(1), Mac::BROADCAST)), Target::Nowhere(Drop::SourceMac));
    assert_eq!(switch.from_port(now, Port(2), &frame(mac(2), mac(1))), Target::Port(Port(1)));
}

#[test]
fn a_learned_address_moves_with_its_station_and_is_forgotten_after_its_age() {
    let mut switch = switch();
    let to_roaming = frame(mac(1), mac(7));
    switch.from_port(seconds(0), Port(3), &frame(mac(7), mac(1)));
    assert_eq!(switch.from_port(seconds(300), Port(1), &to_roaming), Target::Port(Port(3)));
    switch.from_uplink(seconds(300), &frame(mac(7), mac(1)));
    assert_eq!(switch.from_port(seconds(300), Port(1), &to_roaming), Target::Uplink);
    assert_eq!(switch.from_port(seconds(601), Port(1), &to_roaming), Target::Flood);
}

#[test]
fn an_address_that_is_locked_later_is_taken_from_where_it_was_learned() {
    let (mut switch, now) = (switch(), Instant::ZERO);
    switch.from_port(now, Port(3), &frame(mac(4), mac(1)));
    switch.from_port(now, Port(3), &frame(mac(5), mac(1)));
    switch.add(now, Port(4), Some(mac(4)), None).unwrap();
    assert_eq!(switch.from_port(now, Port(1), &frame(mac(1), mac(4))), Target::Port(Port(4)));
    assert_eq!(switch.from_port(now, Port(1), &frame(mac(1), mac(5))), Target::Port(Port(3)));
    switch.remove(Port(4));
    assert_eq!(switch.from_port(now, Port(1), &frame(mac(1), mac(4))), Target::Flood);
}

#[test]
fn a_removed_port_leaves_nothing() {
    let (mut switch, now) = (switch(), Instant::ZERO);
    switch.from_port(now, Port(3), &frame(mac(7), mac(1)));
    for port in 1..=3 {
        switch.remove(Port(port));
        switch.remove(Port(port));
    }
    assert!(switch.addresses.is_empty() && switch.unlocked(UNTAGGED) == 0);
    assert_eq!(switch.from_port(now, Port(3), &frame(mac(7), mac(1))), Target::Nowhere(Drop::NoReceiver));
    assert_eq!(switch.add(now, Port(3), Some(mac(1)), None), Ok(()));
}

#[test]
fn ports_that_cannot_be_are_refused_and_change_nothing() {
    let (mut switch, now) = (switch(), Instant::ZERO);
    let mut refused = |port, locked, vlan| switch.add(now, Port(port), locked, vlan).unwrap_err();
    assert_eq!(refused(16, None, None), SwitchError::PortRange { port: 16, ports: 16 });
    assert_eq!(refused(1, None, None), SwitchError::PortTaken(1));
    for vlan in [0, 4095, u16::MAX] {
        assert_eq!(refused(5, None, Some(vlan)), SwitchError::Vlan { port: 5, vlan });
    }
    for mac in [Mac::BROADCAST, Mac([0; 6])] {
        assert_eq!(refused(5, Some(mac), None), SwitchError::Mac { port: 5, mac });
    }
    assert_eq!(refused(5, Some(mac(1)), None), SwitchError::MacTaken { port: 5, mac: mac(1), owner: 1 });
    assert_eq!((switch.addresses.len(), switch.unlocked(UNTAGGED)), (2, 1));
    assert_eq!(switch.add(now, Port(5), Some(mac(1)), Some(5)), Ok(()), "another VLAN is another network");
}

#[test]
fn vlans_do_not_see_one_another() {
    let (mut switch, now) = (switch(), Instant::ZERO);
    switch.add(now, Port(4), Some(mac(4)), Some(20)).unwrap();
    switch.add(now, Port(5), None, Some(20)).unwrap();
    switch.add(now, Port(6), None, Some(30)).unwrap();
    assert_eq!((switch.vlan(Port(4)), switch.vlan(Port(1))), (Some(20), None));
    assert_eq!(switch.from_port(now, Port(5), &frame(mac(5), mac(4))), Target::Port(Port(4)));
    let unknown_there = frame(mac(1), mac(4));
    assert_eq!(switch.from_port(now, Port(1), &unknown_there), Target::Flood);
    assert_eq!(flooded(&switch, Some(Port(1)), &unknown_there), [3]);
    let all = frame(mac(4), Mac::BROADCAST);
    assert_eq!((switch.from_port(now, Port(4), &all), flooded(&switch, Some(Port(4)), &all)), (Target::Flood, vec![5]));
    assert_eq!(switch.from_uplink(now, &tagged(GATEWAY, mac(4), 20)), Target::Port(Port(4)));
    assert_eq!(switch.from_uplink(now, &frame(GATEWAY, mac(4))), Target::Flood, "it is unknown there");
    let all = tagged(GATEWAY, Mac::BROADCAST, 30);
    assert_eq!((switch.from_uplink(now, &all), flooded(&switch, None, &all)), (Target::Flood, vec![6]));
    // A tag of VLAN 0 is only a priority, and 4095 is reserved.
    assert_eq!(switch.from_uplink(now, &tagged(GATEWAY, mac(1), 0)), Target::Port(Port(1)));
    assert_eq!(switch.from_uplink(now, &tagged(GATEWAY, mac(1), 4095)), Target::Nowhere(Drop::Vlan));
}

#[test]
fn a_guest_cannot_choose_its_vlan() {
    let (mut switch, now) = (switch(), Instant::ZERO);
    switch.add(now, Port(4), None, Some(20)).unwrap();
    for port in [3, 4] {
        for vlan in [0, 20, 30] {
            let target = switch.from_port(now, Port(port), &tagged(mac(9), Mac::BROADCAST, vlan));
            assert_eq!(target, Target::Nowhere(Drop::Vlan));
        }
    }
}

#[test]
fn frames_for_the_next_switch_are_not_forwarded() {
    let (mut switch, now) = (switch(), Instant::ZERO);
    let spanning_tree = Mac([0x01, 0x80, 0xc2, 0, 0, 0]);
    assert_eq!(switch.from_port(now, Port(1), &frame(mac(1), spanning_tree)), Target::Nowhere(Drop::LinkLocal));
    assert_eq!(switch.from_uplink(now, &frame(GATEWAY, spanning_tree)), Target::Nowhere(Drop::LinkLocal));
}

/// A VM that sends from random addresses would otherwise fill the table, so that every frame is flooded.
#[test]
fn a_vm_with_many_addresses_pushes_out_only_its_own() {
    let mut switch = switch();
    switch.add(seconds(0), Port(4), None, None).unwrap();
    switch.from_port(seconds(0), Port(4), &frame(mac(99), mac(1)));
    switch.from_uplink(seconds(0), &frame(GATEWAY, mac(1)));
    for number in 0..100_000u32 {
        let [a, b, c, d] = number.to_be_bytes();
        let now = Instant::from_nanos(u64::from(number) * 1_000);
        switch.from_port(now, Port(3), &frame(Mac([0x56, 0, a, b, c, d]), mac(1)));
        assert!(switch.addresses.len() <= 2 + 2 + 8);
    }
    assert_eq!(switch.from_port(seconds(1), Port(1), &frame(mac(1), mac(99))), Target::Port(Port(4)));
    assert_eq!(switch.from_port(seconds(1), Port(1), &frame(mac(1), GATEWAY)), Target::Uplink);
}

#[test]
fn an_address_in_use_stays_among_many_that_are_not() {
    let mut switch = switch();
    for number in 0..10_000u32 {
        let [a, b, c, d] = number.to_be_bytes();
        let now = Instant::from_nanos(u64::from(number) * 1_000);
        switch.from_port(now, Port(3), &frame(mac(7), mac(1)));
        switch.from_port(now, Port(3), &frame(Mac([0x56, 0, a, b, c, d]), mac(1)));
        assert_eq!(switch.from_port(now, Port(1), &frame(mac(1), mac(7))), Target::Port(Port(3)), "{number}");
    }
}

#[test]
fn a_port_without_room_for_addresses_still_sends() {
    let mut switch = Switch::new(Instant::ZERO, Limits { addresses_per_port: 0, ..limits() });
    switch.add(Instant::ZERO, Port(0), None, None).unwrap();
    assert_eq!(switch.from_port(Instant::ZERO, Port(0), &frame(mac(1), GATEWAY)), Target::Uplink);
}

#[test]
fn each_sender_has_a_cap_on_floods_of_its_own() {
    let limits = Limits { port_flood: flood(4), uplink_flood: flood(8), ..limits() };
    let mut switch = Switch::new(Instant::ZERO, limits);
    switch.add(Instant::ZERO, Port(1), Some(mac(1)), None).unwrap();
    switch.add(Instant::ZERO, Port(2), Some(mac(2)), None).unwrap();
    let storm = |switch: &mut Switch, port: Option<u8>| {
        let step = |switch: &mut Switch| match port {
            Some(port) => switch.from_port(Instant::ZERO, Port(port.into()), &frame(mac(port), Mac::BROADCAST)),
            None => switch.from_uplink(Instant::ZERO, &frame(GATEWAY, Mac::BROADCAST)),
        };
        (0..100).filter(|_| step(switch) == Target::Flood).count()
    };
    let passed = [Some(1), Some(2), None].map(|port| storm(&mut switch, port));
    assert_eq!(passed, [3, 3, 6], "three quarters of the burst; the rest is for ARP");
    let capped = switch.from_port(Instant::ZERO, Port(1), &frame(mac(1), Mac::BROADCAST));
    assert_eq!(capped, Target::Nowhere(Drop::FloodRate));
    assert_eq!(switch.from_port(Instant::ZERO, Port(1), &frame(mac(1), mac(2))), Target::Port(Port(2)), "not flooded");
}

/// The switch as a list of facts, without bounds and caps.
#[derive(Default)]
struct Model {
    /// Number, locked address, VLAN.
    ports: Vec<(u32, Option<Mac>, u16)>,
    /// VLAN, address, port or uplink, time.
    seen: Vec<(u16, Mac, Option<u32>, Instant)>,
}

impl Model {
    fn locked(&self, vlan: u16, mac: Mac) -> Option<u32> {
        let owner = |port: &&(u32, Option<Mac>, u16)| port.1 == Some(mac) && port.2 == vlan;
        self.ports.iter().find(owner).map(|port| port.0)
    }

    /// Returns the ports that get the frame and whether the uplink does.
    fn forward(&mut self, now: Instant, from: Option<u32>, vlan: u16, frame: &Frame) -> (Vec<u32>, bool) {
        let own_lock = self.ports.iter().find(|port| Some(port.0) == from).and_then(|port| port.1);
        let owner = self.locked(vlan, frame.source);
        if owner.is_some() && owner != from || own_lock.is_some_and(|mac| mac != frame.source) {
            return (Vec::new(), false);
        }
        if owner.is_none() {
            self.seen.retain(|seen| (seen.0, seen.1) != (vlan, frame.source));
            self.seen.push((vlan, frame.source, from, now));
        }
        let others = |ports: &[(u32, Option<Mac>, u16)], unlocked: bool| {
            let gets = |port: &&(u32, Option<Mac>, u16)| {
                Some(port.0) != from && port.2 == vlan && !(unlocked && port.1.is_some())
            };
            ports.iter().filter(gets).map(|port| port.0).collect::<Vec<u32>>()
        };
        if frame.destination.is_multicast() {
            return (others(&self.ports, false), from.is_some());
        }
        let fresh = |seen: &&(u16, Mac, Option<u32>, Instant)| {
            (seen.0, seen.1) == (vlan, frame.destination) && now.since(seen.3) <= Duration::from_secs(300)
        };
        let place = self.locked(vlan, frame.destination).map(Some);
        match place.or_else(|| self.seen.iter().find(fresh).map(|seen| seen.2)) {
            Some(place) if place == from => (Vec::new(), false),
            Some(Some(port)) => (vec![port], false),
            Some(None) => (Vec::new(), true),
            None => (others(&self.ports, true), from.is_some()),
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Add { port: u32, locked: Option<u8>, vlan: Option<u16> },
    Remove(u32),
    Send { from: Option<u32>, source: u8, destination: Option<u8>, vlan: u16, wait: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let vlans = || prop_oneof![Just(None), Just(Some(20u16))];
    let add = (0u32..5, proptest::option::of(0u8..5), vlans());
    let send = (proptest::option::of(0u32..5), 0u8..7, proptest::option::of(0u8..7), vlans(), 0u64..200);
    let step = prop_oneof![
        2 => add.prop_map(|(port, locked, vlan)| Step::Add { port, locked, vlan }),
        1 => (0u32..5).prop_map(Step::Remove),
        10 => send.prop_map(|(from, source, destination, vlan, wait)| {
            Step::Send { from, source, destination, vlan: vlan.unwrap_or(0), wait }
        }),
    ];
    proptest::collection::vec(step, 1..60)
}

/// Ports that get the frame, in order, and whether the uplink does.
fn outcome(switch: &mut Switch, now: Instant, from: Option<u32>, frame: &Frame) -> (Vec<u32>, bool) {
    let target = match from {
        Some(port) => switch.from_port(now, Port(port), frame),
        None => switch.from_uplink(now, frame),
    };
    match target {
        Target::Port(port) => (vec![port.0], false),
        Target::Uplink => (Vec::new(), true),
        Target::Flood => (flooded(switch, from.map(Port), frame), from.is_some()),
        Target::Nowhere(_) => (Vec::new(), false),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_switch_agrees_with_a_list_of_facts(steps in steps()) {
        let mut switch = Switch::new(Instant::ZERO, limits());
        let (mut model, mut now) = (Model::default(), Instant::ZERO);
        for step in steps {
            match step {
                Step::Add { port, locked, vlan } => {
                    let (number, locked) = (vlan.unwrap_or(0), locked.map(mac));
                    let taken = model.ports.iter().any(|other| other.0 == port)
                        || locked.is_some_and(|mac| model.locked(number, mac).is_some());
                    prop_assert_eq!(switch.add(now, Port(port), locked, vlan).is_err(), taken);
                    if !taken {
                        model.ports.push((port, locked, number));
                        model.ports.sort_unstable_by_key(|port| port.0);
                        model.seen.retain(|seen| seen.0 != number || Some(seen.1) != locked);
                    }
                }
                Step::Remove(port) => {
                    switch.remove(Port(port));
                    model.ports.retain(|other| other.0 != port);
                    model.seen.retain(|seen| seen.2 != Some(port));
                }
                Step::Send { from, source, destination, vlan, wait } => {
                    now = now + Duration::from_secs(wait);
                    let destination = destination.map_or(Mac::BROADCAST, mac);
                    let port = from.map(|from| model.ports.iter().find(|port| port.0 == from));
                    let vlan = match port {
                        Some(None) => continue,
                        Some(Some(port)) => port.2,
                        None => vlan,
                    };
                    let sent = match from {
                        None if vlan != 0 => tagged(mac(source), destination, vlan),
                        _ => frame(mac(source), destination),
                    };
                    let expected = model.forward(now, from, vlan, &sent);
                    prop_assert_eq!(outcome(&mut switch, now, from, &sent), expected);
                }
            }
        }
    }
}

#[test]
fn what_all_ports_flood_together_is_bounded_by_copies() {
    let number = |value| NonZeroU32::new(value).unwrap();
    let copies = CopyLimit { per_second: number(100), burst: number(50) };
    let mut switch = Switch::new(Instant::ZERO, Limits { copies, ..limits() });
    for port in 1..=10 {
        switch.add(Instant::ZERO, Port(port), Some(mac(port as u8)), None).unwrap();
    }
    let everyone = Mac([0xff; 6]);
    let mut passed = 0;
    for round in 0..1000u64 {
        let port = 1 + (round % 10) as u32;
        let target = switch.from_port(Instant::from_millis(round), Port(port), &frame(mac(port as u8), everyone));
        assert!(matches!(target, Target::Flood | Target::Nowhere(Drop::FloodTotal)), "{target:?}");
        passed += u32::from(target == Target::Flood);
    }
    // A frame has ten copies: 5 of the burst, and 10 in the second.
    assert!((14..=15).contains(&passed), "{passed}");
}
