//! wrr: shares by weight over any interval, while other NICs come and go.

use crate::common::analysis::{assert_close, bytes};
use crate::common::*;
use rand_pcg::Pcg32;
use sluice_sched::gate::GateSettings;
use sluice_sched::scheduler::DeviceInfo;
use sluice_sched::*;

/// Bytes of a full frame, and of a small one.
const FRAME: u32 = 1514;
const SMALL: u32 = 60;

/// A link of depth 4 that sends each frame in `nanos`.
fn link(rounds: &str, unit: &str, nanos: u64) -> World {
    let info = DeviceInfo { depth: 4, ..DeviceInfo::default() };
    let settings = GateSettings { depth: 4, cost: CostModel::per_request(), ..GateSettings::default() };
    World::new(Subject::of("wrr").text("rounds", rounds).text("unit", unit).build(&info), settings, Stub::serial(nanos))
}

fn of_weight(weight: u32, minimum_mbit: Option<u64>, maximum_mbit: Option<u64>) -> Policy {
    let rate = |mbit: Option<u64>| mbit.map(|mbit| ByteRate::per_second(mbit * 125_000));
    Policy {
        reservation: Reservation { iops: None, bytes: rate(minimum_mbit) },
        limit: Limit { iops: None, bytes: rate(maximum_mbit) },
        ..Policy::weighted(weight)
    }
}

/// A VM that sends frames of these lengths.
fn sender(world: &mut World, policy: Policy, pattern: Pattern, lengths: &[u32]) -> OwnerId {
    let vm = world.vm(policy);
    world.source(Source::new(vm, VolumeId(0), pattern).lengths(lengths));
    vm
}

/// Largest difference of the services/weights of two NICs in any interval, once both are present.
fn drift(world: &World, vms: &[(OwnerId, u32); 2], unit: impl Fn(&Record) -> f64) -> f64 {
    let (mut lag, mut low, mut high) = (0.0f64, 0.0f64, 0.0f64);
    for record in world.log.iter().filter(|record| record.at > Instant::ZERO) {
        let owner = record.request.owner;
        let service = |of: usize| if vms[of].0 == owner { unit(record) / f64::from(vms[of].1) } else { 0.0 };
        lag += service(0) - service(1);
        (low, high) = (low.min(lag), high.max(lag));
    }
    high - low
}

// rule: wrr.bound, wrr.round
#[test]
fn a_light_nic_that_comes_and_goes_does_not_change_other_shares() {
    // Frames of 121 us at long, unpredictable intervals, before all others or not. In the published form a weight of 1
    // makes the turns of the others a hundred times as long as one of 100 does, and shares are the same.
    for rounds in ["tags", "published"] {
        for (weight, minimum) in [(1, Some(10)), (1, None), (100, Some(10)), (100, None)] {
            for (unit, every) in
                ["bytes", "packets"].into_iter().flat_map(|unit| [3, 5, 17, 37].map(|every| (unit, every)))
            {
                let mut world = link(rounds, unit, 121_120);
                let busy = [300, 100]
                    .map(|weight| sender(&mut world, of_weight(weight, None, None), Pattern::Closed(256), &[FRAME]));
                sender(&mut world, of_weight(weight, minimum, None), Pattern::Open(every * MILLI), &[FRAME]);
                world.run_until(secs(11));
                let got = world.rates(&busy, secs(1), secs(11));
                let both = got[0] + got[1];
                let what = format!("{rounds}, weight {weight}, minimum {minimum:?} Mb/s, every {every} ms, {unit}");
                assert_close(&what, &got, &[both * 0.75, both * 0.25], 0.01);
            }
        }
    }
}

/// A NIC of any weight that is not always present, with a minimum rate of at most a tenth of the link.
fn passer_by(rng: &mut Pcg32, world: &mut World) -> u32 {
    let heaviest = pick(rng, &[1, 10, 1000]);
    let weight = 1 + below(rng, heaviest) as u32;
    let (minimum, maximum) = (pick(rng, &[None, Some(5), Some(100)]), pick(rng, &[None, None, Some(30)]));
    let pattern = match below(rng, 3) {
        0 => Pattern::Open(20_000 + below(rng, 2_000_000)),
        1 => Pattern::Think(1 + below(rng, MILLI)),
        _ => Pattern::OnOff {
            outstanding: 1 + below(rng, 50) as u32,
            on: 1 + below(rng, 20 * MILLI),
            off: 1 + below(rng, 20 * MILLI),
        },
    };
    let lengths: Vec<u32> = (0..3).map(|_| pick(rng, &[SMALL, 512, FRAME])).collect();
    // A minimum above a maximum is rejected.
    let minimum = minimum.filter(|minimum| maximum.is_none_or(|maximum| *minimum <= maximum));
    sender(world, of_weight(weight, minimum, maximum), pattern, &lengths);
    weight
}

// rule: wrr.bound
#[test]
fn q15_holds_for_two_nics_while_others_come_and_go() {
    let mut rng = chance(151);
    for run in 0..120 {
        let (packets, tags) = (run % 2 == 0, run >= 60);
        // Full frames go at 1 Gb/s.
        let rounds = if tags { "tags" } else { "published" };
        let mut world = link(rounds, if packets { "packets" } else { "bytes" }, 12_112);
        let busy = [0, 1].map(|_| {
            let weight = 1 + below(&mut rng, 1000) as u32;
            let lengths: Vec<u32> = (0..4).map(|_| pick(&mut rng, &[SMALL, 512, FRAME])).collect();
            (sender(&mut world, of_weight(weight, None, None), Pattern::Closed(256), &lengths), weight)
        });
        let others: Vec<u32> = (0..1 + below(&mut rng, 4)).map(|_| passer_by(&mut rng, &mut world)).collect();
        world.run_until(millis(600));
        assert!(busy.iter().all(|(vm, _)| world.of(*vm).count() > 100), "both are served");
        // Weights divided by the smallest: its turn is one packet, or one frame.
        // With tags a turn is a frame for all weights: the bound is that of the two NICs only.
        let one = if tags { 0.0 } else { 1.0 };
        let lightest = others.iter().chain(busy.iter().map(|(_, weight)| weight)).min().expect("there are some");
        let over = |weight: u32| f64::from(weight) / f64::from(*lightest);
        let parts = 1.0 / over(busy[0].1) + 1.0 / over(busy[1].1);
        let (unit, bound) = match packets {
            // A fraction of a packet is kept if weights are not multiples of the smallest.
            true => (1.0, one + parts),
            false => (f64::from(FRAME), f64::from(FRAME) * (one + parts)),
        };
        let service = |record: &Record| if packets { unit } else { bytes(record) };
        let got = drift(&world, &busy, service) * f64::from(*lightest);
        assert!(
            got <= bound * (1.0 + 1e-6),
            "Q15: {got} of {bound}, {busy:?} next to {others:?}, packets {packets}, {rounds}"
        );
    }
}
