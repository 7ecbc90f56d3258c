//! Free runs: any calls in any order, on one to three servers.

use std::time::Duration;

use sluice_sched::admission::Capacity;
use sluice_sched::gate::RemoteService;
use sluice_sched::*;

use super::input::Input;
use super::ledger::PIECES_MAX;
use super::model::Model;
use super::policies::{directed, in_bytes, inner, policy};
use super::subject::Subject;
use super::world::{Event, Server, World, refused_for_a_reason};

/// Bounds of one run.
const OPERATIONS_MAX: u32 = 300;
const PIECES_TOTAL_MAX: u32 = 1500;
const VMS_MAX: usize = 40;
const VOLUMES_MAX: usize = 5;
/// Requests that wait longer for a limit are cancelled at the end of a run.
const PATIENCE: Duration = Duration::from_secs(30 * 24 * 3600);

/// Runs an input. Returns the events of the gates.
pub fn run(mut input: Input<'_>, is_printing: bool) -> Vec<Event> {
    let world = world(&mut input, is_printing);
    let mut run = Free { world, input };
    let mut operations = 0;
    while !run.input.is_empty() && operations < OPERATIONS_MAX {
        run.operation();
        operations += 1;
    }
    run.drain();
    run.world.log
}

struct Free<'a> {
    world: World,
    input: Input<'a>,
}

fn world(input: &mut Input<'_>, is_printing: bool) -> World {
    let start = input.pick(&[0, 1_000_000_000, 1 << 40, u64::MAX - (1 << 59)]);
    let count = input.pick(&[1, 1, 1, 1, 1, 2, 2, 3]);
    let servers = (0..count).map(|_| server(input)).collect();
    let mut world = World::new(Instant::from_nanos(start), servers, is_printing);
    for server in &world.servers {
        world.say(format_args!("a server with {}, {:?}", server.subject, server.gate.settings()));
    }
    for _ in 0..1 + input.below(4) {
        world.add_vm(policy(input));
    }
    world
}

fn server(input: &mut Input<'_>) -> Server {
    let subject = Subject::read(input);
    let flags = input.byte();
    let kib = |kib: u64| Bytes::kib(kib);
    let settings = GateSettings {
        depth: 1 + input.below(64) as u32,
        transfer_max: input.pick(&[kib(256), kib(4), kib(64), kib(1024), Bytes(1), Bytes(u64::from(u32::MAX))]),
        discard_max: input.pick(&[Bytes::mib(64), kib(4), Bytes(u64::MAX)]),
        queue_max: input.pick(&[65_536, 1, 4, 64]),
        cost: cost_model(input),
        merging: flags & 1 == 1,
        ..GateSettings::default()
    };
    let capacity = Capacity {
        iops: (flags & 2 == 2).then(|| Iops::per_second(input.number())),
        bytes: (flags & 4 == 4).then(|| ByteRate::per_second(input.number())),
    };
    Server::new(subject, settings, capacity, flags & 8 == 8)
}

fn cost_model(input: &mut Input<'_>) -> CostModel {
    let other = CostModel::default();
    match input.below(6) {
        1 => CostModel::per_request(),
        2 => CostModel::paper(),
        3 => CostModel { reference: Some(Bytes(4096)), knee: Bytes(4096), ..other },
        4 => CostModel { reference: Some(Bytes(0)), knee: Bytes(1), flush: Cost::from_raw(1), ..other },
        5 => CostModel { discard: Cost::from_raw(u32::MAX), discard_mib: Cost::from_raw(u32::MAX), ..other },
        _ => other,
    }
}

impl Free<'_> {
    fn operation(&mut self) {
        let code = self.input.byte();
        let server = usize::from(code >> 6) % self.world.servers.len();
        match code & 31 {
            0..=8 => self.ask(server),
            9..=12 => self.complete(server),
            13..=16 => self.advance(),
            17 => (0..1 + self.input.below(4)).for_each(|_| self.world.pump(server)),
            18 | 19 => self.set_policies(server),
            20 => self.add_vm(),
            21 => self.remove_vm(),
            22 => self.add_volume(server),
            23 => self.remove_volume(server),
            24 => self.set_depth(server),
            25 => self.replace(server),
            26 => self.cancel(server),
            27 => self.set_device(server),
            28 => self.inspect(server),
            31 => self.limit_directions(server),
            _ => self.complete_all(server),
        }
        if (18..=25).contains(&(code & 31)) || code & 31 == 31 {
            self.world.servers.iter().for_each(Server::check_policies);
        }
        // Several calls may share one pump.
        if code & 32 == 0 {
            (0..self.world.servers.len()).for_each(|server| self.world.pump(server));
        }
    }

    /// Chooses a VM, and its owner at this server.
    fn vm(&mut self, server: usize) -> Option<(usize, OwnerId)> {
        let vm = self.input.below(self.world.vms.len().max(1));
        Some((vm, self.world.owner(vm, server)?))
    }

    fn volume(&mut self, vm: usize, server: usize) -> Option<VolumeId> {
        let volumes = &self.world.home(vm, server).volumes;
        let place = self.input.below(volumes.len().max(1));
        volumes.get(place).map(|(volume, _)| *volume)
    }

    /// Submits up to 16 requests.
    fn ask(&mut self, server: usize) {
        let Some((vm, owner)) = self.vm(server) else { return };
        let Some(volume) = self.volume(vm, server) else { return };
        let (what, lies) = (self.input.byte(), self.input.byte());
        let kind = match what & 7 {
            0 | 1 | 4 => Kind::Read,
            2 | 3 => Kind::Write,
            5 => Kind::Flush,
            6 => Kind::Discard,
            _ => Kind::WriteZeroes,
        };
        let flag = |bit: u8, flag: Flags| if what & bit != 0 { flag } else { Flags::NONE };
        let flags = flag(8, Flags::SYNC).with(flag(16, Flags::BACKGROUND)).with(flag(32, Flags::FORCED));
        let count = if what & 64 == 0 { 1 } else { 1 + self.input.below(16) };
        let length = self.length(server, kind);
        let lie = if lies & 15 > 12 { Some(self.lie()) } else { None };
        for _ in 0..count {
            if self.world.ledger.pieces > PIECES_TOTAL_MAX {
                return;
            }
            let honest = (lies & 15 > 9 && lie.is_none()).then(|| self.world.honest(vm, server));
            let remote = lie.or(honest.map(|(remote, _)| remote));
            let offset = self.offset(vm, length, lies >> 4);
            let token = self.world.ledger.next_token();
            let arrival = Arrival { owner, volume, kind, flags, offset, length, token, remote };
            self.world.say(format_args!("VM {vm} asks server {server}: {arrival:?}"));
            let taken = self.world.ask(vm, server, arrival);
            if let Some((_, heard)) = honest {
                self.world.vms[vm].tracker.answer(server as u32, heard, taken);
            }
        }
    }

    fn length(&mut self, server: usize, kind: Kind) -> u32 {
        let piece_max = self.world.servers[server].piece_max(kind);
        let twice = piece_max.saturating_mul(2);
        let lengths = [8192, 4096, 65_536, 0, 1, 511, 512, 262_144, 1 << 20, 3 << 20, u32::MAX, 1514, piece_max, twice];
        let length = self.input.pick(&lengths);
        let length = if kind == Kind::Flush && length > 512 { 0 } else { length };
        length.min(piece_max.saturating_mul(PIECES_MAX))
    }

    /// Chooses an offset, usually directly after or before the VM's last request, so that requests can be merged.
    fn offset(&mut self, vm: usize, length: u32, place: u8) -> u64 {
        let last = self.world.vms[vm].next_offset;
        let next = match place {
            0..=7 => last,
            8..=10 => last.saturating_sub(2 * u64::from(length)),
            11 => 4096,
            12 => u64::MAX,
            _ => self.input.number(),
        };
        // Frontends reject requests outside the volume.
        let next = next.min(u64::MAX - u64::from(length));
        self.world.vms[vm].next_offset = next + u64::from(length);
        next
    }

    fn lie(&mut self) -> RemoteService {
        let count = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let [rho, delta] = [0; 2].map(|_| count(self.input.number()));
        let [rho_bytes, delta_bytes] = [0; 2].map(|_| self.input.number());
        // No number of its own, so that seeds keep their meaning: less than `delta`, or more.
        let servers = count(self.input.number());
        RemoteService { rho, delta, recent: rho, rho_bytes, delta_bytes, servers, outstanding: delta }
    }

    fn complete(&mut self, server: usize) {
        let flying = self.world.servers[server].model.flying.len();
        if flying > 0 {
            let place = self.input.below(flying);
            let ok = self.input.one_in(8).then(|| self.input.number());
            self.world.complete(server, place, ok);
        }
    }

    fn complete_all(&mut self, server: usize) {
        while !self.world.servers[server].model.flying.is_empty() {
            self.world.complete(server, 0, None);
        }
    }

    fn advance(&mut self) {
        const MICRO: u64 = 1000;
        const MILLI: u64 = 1000 * MICRO;
        const SECOND: u64 = 1000 * MILLI;
        let steps = [MILLI, 0, 1, MICRO, 100 * MICRO, 10 * MILLI, 100 * MILLI, SECOND, 60 * SECOND, 3600 * SECOND];
        let code = self.input.byte();
        let times = 1 + u64::from(code >> 4);
        let (nanos, is_punctual) = match code & 15 {
            step @ 0..=9 => (steps[usize::from(step)] * times, true),
            10 => (MILLI * times, false),
            11 => (3600 * SECOND * times, false),
            // To the next event, or a little later.
            later => {
                let next = self.world.next().map_or(0, |(at, _)| at.nanos_since(self.world.now));
                let late = [0, 1, MILLI, SECOND][usize::from(later & 3)];
                ((next + late * (times - 1)).min(1000 * 3600 * SECOND), later & 3 < 2)
            }
        };
        self.world.say(format_args!("{nanos} ns pass, punctually: {is_punctual}"));
        self.world.advance(Duration::from_nanos(nanos), is_punctual);
    }

    fn set_policies(&mut self, server: usize) {
        let Some((vm, owner)) = self.vm(server) else { return };
        let how = self.input.byte();
        let new = if how & 1 == 0 { policy(&mut self.input) } else { self.world.home(vm, server).policy };
        // Most policies that the scheduler would reject are repaired.
        let subject = self.world.servers[server].subject.clone();
        let acceptable = |policy: Policy| match subject.check_units(&policy) {
            Err(_) if how & 24 != 24 => in_bytes(policy),
            _ => policy,
        };
        let new = acceptable(new);
        let mut volumes = Vec::new();
        for _ in 0..how >> 1 & 3 {
            if let Some(volume) = self.volume(vm, server) {
                volumes.push((volume, acceptable(inner(&mut self.input, &new))));
            }
        }
        let now = self.world.now;
        let gate = &mut self.world.servers[server].gate;
        let changed = gate.set_policies(now, owner, new, &volumes);
        if changed.is_ok() {
            let home = self.world.home(vm, server);
            home.policy = new;
            for (volume, policy) in &mut home.volumes {
                let stated = volumes.iter().rev().find(|(known, _)| known == volume);
                *policy = stated.map_or(*policy, |(_, stated)| *stated);
            }
        }
        refused_for_a_reason(&self.world.servers[server].subject, changed.as_ref().err());
        self.world.say(format_args!("VM {vm} at server {server} gets {new:?}, {volumes:?}: {changed:?}"));
    }

    /// Gives a VM, or one of its volumes, limits of reads and of writes.
    fn limit_directions(&mut self, server: usize) {
        let Some((vm, owner)) = self.vm(server) else { return };
        let volume = self.volume(vm, server).filter(|_| self.input.one_in(2));
        let home = self.world.home(vm, server);
        let (outer, volumes) = (home.policy, home.volumes.clone());
        let known = volumes.iter().find(|(id, _)| Some(*id) == volume).map_or(outer, |(_, policy)| *policy);
        let new = directed(&mut self.input, known);
        let now = self.world.now;
        let gate = &mut self.world.servers[server].gate;
        let changed = match volume {
            Some(volume) => gate.set_policies(now, owner, outer, &[(volume, new)]),
            None => gate.set_policies(now, owner, new, &[]),
        };
        if changed.is_ok() {
            let home = self.world.home(vm, server);
            match volume {
                Some(volume) => {
                    home.volumes.iter_mut().filter(|(id, _)| *id == volume).for_each(|(_, policy)| *policy = new)
                }
                None => home.policy = new,
            }
        }
        refused_for_a_reason(&self.world.servers[server].subject, changed.as_ref().err());
        self.world.say(format_args!("VM {vm} at server {server}, {volume:?} gets {new:?}: {changed:?}"));
    }

    fn add_vm(&mut self) {
        if self.world.vms.len() < VMS_MAX {
            self.world.add_vm(policy(&mut self.input));
        }
    }

    fn remove_vm(&mut self) {
        let vm = self.input.below(self.world.vms.len().max(1));
        if vm < self.world.vms.len() {
            self.world.remove_vm(vm);
        }
    }

    fn add_volume(&mut self, server: usize) {
        let Some((vm, owner)) = self.vm(server) else { return };
        if self.world.home(vm, server).volumes.len() >= VOLUMES_MAX {
            return;
        }
        let now = self.world.now;
        let gate = &mut self.world.servers[server].gate;
        let outer = *gate.policy(owner).expect("an owner that is present");
        let policy = inner(&mut self.input, &outer);
        let added = gate.add_volume(now, owner, policy);
        refused_for_a_reason(&self.world.servers[server].subject, added.as_ref().err());
        self.world.say(format_args!("VM {vm} at server {server} gets a volume with {policy:?}: {added:?}"));
        self.world.home(vm, server).volumes.extend(added.ok().map(|volume| (volume, policy)));
    }

    fn remove_volume(&mut self, server: usize) {
        let Some((vm, _)) = self.vm(server) else { return };
        if let Some(volume) = self.volume(vm, server) {
            self.world.remove_volume(vm, server, volume);
        }
    }

    fn set_depth(&mut self, server: usize) {
        let (now, depth) = (self.world.now, 1 + self.input.below(64) as u32);
        self.world.say(format_args!("server {server} takes {depth}"));
        let Server { gate, model, .. } = &mut self.world.servers[server];
        let request_bytes = gate.settings().request_bytes;
        gate.set_device(now, depth, request_bytes).expect("a scheduler takes every depth");
        model.depth = depth;
    }

    fn replace(&mut self, server: usize) {
        let subject = Subject::read(&mut self.input);
        let merging = self.input.one_in(2);
        let (now, name) = (self.world.now, subject.to_string());
        let replaced = self.world.servers[server].replace(now, subject, merging);
        self.world.say(format_args!("server {server} gets {name}, merging: {merging}: {replaced:?}"));
    }

    fn cancel(&mut self, server: usize) {
        let Some((vm, owner)) = self.vm(server) else { return };
        match self.volume(vm, server).filter(|_| self.input.one_in(2)) {
            Some(volume) => self.world.cancel(server, Scope::Volume(owner, volume)),
            None => self.world.cancel(server, Scope::Owner(owner)),
        }
    }

    fn set_device(&mut self, server: usize) {
        let (service, how) = (self.input.byte(), self.input.byte());
        let now = self.world.now;
        let model = &mut self.world.servers[server].model;
        let nanos = [1_000_000, 0, 1, 100_000, 10_000_000, 1_000_000_000, 3_000_000, 200_000];
        model.service = Duration::from_nanos(nanos[usize::from(service & 7)]);
        model.service_kib = Duration::from_nanos(if how & 1 == 1 { 10_000 } else { 0 });
        model.is_serial = how & 2 == 2;
        model.is_failing = how & 12 == 12;
        let stall = [0, 0, 1, 3600][usize::from(how >> 4 & 3)];
        model.stalled_until = now + Duration::from_secs(stall);
        let Model { service, service_kib, is_serial, is_failing, .. } = model;
        let (service, kib, serial, failing) = (*service, *service_kib, *is_serial, *is_failing);
        // Another capacity is stated of it.
        let gate = &mut self.world.servers[server].gate;
        let GateSettings { depth, request_bytes, .. } = *gate.settings();
        let request_bytes = [request_bytes, Bytes(1024), Bytes(65_536), Bytes(1 << 40)][usize::from(how >> 6)];
        gate.set_device(now, depth, request_bytes).expect("a scheduler takes every capacity");
        self.world.say(format_args!(
            "server {server} takes {service:?} and {kib:?} for each KiB, serial: {serial}, failing: {failing}, stalls {stall} s, \
             {request_bytes} for each request"
        ));
    }

    fn inspect(&self, server: usize) {
        let _ = self.world.servers[server].gate.inspect(self.world.now);
    }

    /// No more requests arrive: all queued requests must be dispatched, except those that wait too long for a limit.
    fn drain(&mut self) {
        self.world.say(format_args!("the end begins"));
        let horizon = self.world.now + PATIENCE;
        let mut steps = 8 * self.world.ledger.pieces + 64;
        (0..self.world.servers.len()).for_each(|server| self.world.pump(server));
        while let Some((at, server)) = self.world.next().filter(|(at, _)| *at <= horizon) {
            assert!(steps > 0, "S6: no progress at server {server}: {}", self.world.servers[server].subject);
            steps -= 1;
            self.world.happen(at, server);
        }
        (0..self.world.vms.len()).for_each(|vm| self.world.remove_vm(vm));
        (0..self.world.servers.len()).for_each(|server| self.complete_all(server));
        self.world.ledger.check_all_finished();
        for server in &self.world.servers {
            let state = server.gate.inspect(self.world.now);
            assert!(state.owners.is_empty() && state.queued == 0, "S7: {state:?}");
            assert_eq!((server.gate.queued(), server.gate.in_flight()), (0, 0), "S7: nothing is left");
        }
    }
}
