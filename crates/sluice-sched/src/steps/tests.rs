//! Steps per request, with a short and with a long queue.

use crate::gate::{Arrival, Device, Gate, GateSettings, Slot, Submission};
use crate::params::{ParamTable, Range, Value};
use crate::policy::Policy;
use crate::request::{Flags, Kind, OwnerId, VolumeId};
use crate::scheduler::{Descriptor, DeviceInfo};
use crate::schedulers;
use crate::steps::counted;
use crate::time::Instant;

const LENGTH: u32 = 4096;
const DEPTH: u32 = 64;
/// Multiplicative inverse of the multiplier of the former table of addresses.
const INVERSE: u64 = 0xF1DE_83E1_9937_733D;

/// Offsets that a guest chooses for its requests.
#[derive(Debug, Clone, Copy)]
enum Pattern {
    OnePlace,
    Apart,
    /// All in the first row of a table that multiplies by the golden ratio.
    Colliding,
}

impl Pattern {
    fn offset(self, index: u64) -> u64 {
        match self {
            Pattern::OnePlace => 1 << 30,
            Pattern::Apart => index * 0x9E37_79B1 % (1 << 40) * 2 * u64::from(LENGTH),
            Pattern::Colliding => index.wrapping_mul(INVERSE) >> 1,
        }
    }
}

#[derive(Default)]
struct Held(Vec<Slot>);

impl Device for Held {
    fn submit(&mut self, _now: Instant, submission: &Submission) {
        self.0.push(submission.slot);
    }

    fn submit_merged(&mut self, now: Instant, submission: &Submission, _parts: &[crate::gate::Part]) {
        self.submit(now, submission);
    }
}

struct Load {
    gate: Gate,
    owner: OwnerId,
    volume: VolumeId,
    device: Held,
}

impl Load {
    /// A gate that merges, with a VM that has `queued` requests waiting, all with the same arrival.
    fn new(descriptor: &Descriptor, params: &ParamTable, pattern: Pattern, queued: u64) -> Load {
        let info = DeviceInfo { depth: DEPTH, rotational: true, ..DeviceInfo::default() };
        let scheduler = descriptor.build(&info, params).expect("valid parameters");
        let settings = GateSettings { depth: DEPTH, queue_max: 1 << 20, merging: true, ..GateSettings::default() };
        let mut gate = Gate::new(scheduler, settings);
        let owner = gate.add_owner(Instant::ZERO, Policy::default()).expect("a sound policy");
        let volume = gate.add_volume(Instant::ZERO, owner, Policy::default()).expect("the first");
        let mut load = Load { gate, owner, volume, device: Held::default() };
        (0..queued).for_each(|index| load.ask(pattern.offset(index)));
        load
    }

    fn ask(&mut self, offset: u64) {
        let (owner, volume) = (self.owner, self.volume);
        let (kind, flags) = (Kind::Read, Flags::NONE);
        let arrival = Arrival { owner, volume, kind, flags, offset, length: LENGTH, token: 0, remote: None };
        self.gate.insert(Instant::from_millis(1), &arrival).expect("the queue has room");
    }

    /// Maximum number of steps of an arrival and of a dispatch, over some of each.
    fn measure(&mut self, pattern: Pattern, queued: u64) -> [u64; 2] {
        let mut most = [0; 2];
        for index in 0..64 {
            // Offsets adjacent to queued requests, after and before them, and others.
            let known = pattern.offset(index * 37 % queued);
            let length = u64::from(LENGTH);
            for offset in [known.saturating_add(length), known.saturating_sub(length), pattern.offset(queued + index)] {
                most[0] = most[0].max(counted(|| self.ask(offset)).1);
            }
        }
        for round in 1..8 {
            let now = Instant::from_millis(round);
            let Load { gate, device, .. } = self;
            let (_, steps) = counted(|| gate.pump(now, device));
            most[1] = most[1].max(steps / (device.0.len() as u64).max(1));
            let mut finished = Vec::new();
            for slot in self.device.0.drain(..) {
                self.gate.complete_all(now, slot, true, &mut finished);
            }
        }
        most
    }
}

fn variants() -> Vec<(&'static Descriptor, ParamTable)> {
    let mut variants = Vec::new();
    for descriptor in schedulers::ALL {
        let words = |name: &str| {
            let parameter = descriptor.parameters.iter().find(|parameter| parameter.name == name);
            let words = match parameter.map(|parameter| parameter.range) {
                Some(Range::Words(words)) => words,
                _ => &[],
            };
            words.iter().map(|word| (name.to_owned(), Value::Text((*word).to_owned()))).collect::<Vec<_>>()
        };
        variants.push((*descriptor, ParamTable::new()));
        for name in ["mode", "equal_deadlines", "rounds"] {
            variants.extend(words(name).into_iter().map(|stated| (*descriptor, ParamTable::from([stated]))));
        }
        for mode in words("mode") {
            let both = words("equal_deadlines").into_iter().map(|stated| ParamTable::from([mode.clone(), stated]));
            variants.extend(both.map(|both| (*descriptor, both)));
        }
    }
    variants
}

#[test]
fn the_work_per_request_grew_with_the_queue_and_with_chosen_offsets() {
    let mut found = Vec::new();
    for (descriptor, params) in variants() {
        for pattern in [Pattern::OnePlace, Pattern::Apart, Pattern::Colliding] {
            let at = |queued| Load::new(descriptor, &params, pattern, queued).measure(pattern, queued);
            let (short, long) = (at(256), at(8192));
            // A tree with 32 times as many entries is two or three levels higher.
            if (0..2).any(|what: usize| long[what] > 2 * short[what] + 16) {
                found.push(format!("{} {params:?} {pattern:?}: {short:?}, {long:?}", descriptor.name));
            }
        }
    }
    assert!(
        found.is_empty(),
        "steps of an arrival and a dispatch, with 256 and 8192 queued requests:\n{}",
        found.join("\n")
    );
}
