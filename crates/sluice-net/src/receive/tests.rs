use super::*;
use proptest::prelude::*;

const BOUNDS: Bounds = Bounds { frames: 100, memory: 150_000 };
const UNLIMITED: ReceivePolicy = ReceivePolicy { limit: None, weight: Weight::DEFAULT };
const MICRO: Duration = Duration::from_micros(1);

fn limited(bytes_per_second: u64, burst: u64) -> ReceivePolicy {
    let [bytes_per_second, burst] = [bytes_per_second, burst].map(|number| NonZeroU64::new(number).unwrap());
    ReceivePolicy { limit: Some(ReceiveLimit { bytes_per_second, burst }), ..UNLIMITED }
}

fn weighted(weight: u32) -> ReceivePolicy {
    ReceivePolicy { weight: Weight::new(weight), ..UNLIMITED }
}

fn queues(policies: &[ReceivePolicy]) -> Receive<u32> {
    let mut queues = Receive::default();
    for (port, policy) in (0..).zip(policies) {
        queues.add(Instant::ZERO, Port(port), *policy, BOUNDS).unwrap();
    }
    queues
}

/// A frame that occupies `bytes` of the wire and of memory.
fn size(bytes: u32) -> Size {
    Size { wire: bytes, memory: bytes }
}

/// The next step of a delivery.
#[derive(Debug, PartialEq, Eq)]
enum Taken {
    Packet { port: Port, packet: u32, bytes: u32 },
    WaitUntil(Instant),
    Idle,
}

fn take(queues: &mut Receive<u32>, now: Instant) -> Taken {
    let Some(port) = queues.turn(now) else {
        let due = queues.next_due();
        return due.map_or(Taken::Idle, Taken::WaitUntil);
    };
    assert!(queues.next_due().unwrap() <= now);
    let (packet, size) = queues.take(now, port).unwrap();
    Taken::Packet { port, packet, bytes: size.wire }
}

fn give_back(queues: &mut Receive<u32>, now: Instant, port: Port, packet: u32, bytes: u32) {
    queues.give_back(now, port, [(packet, size(bytes))].into_iter());
}

fn nanos(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

/// Delivers for `time` with queues that never run empty, and returns the CPU time that each NIC got. `cost` is that of one frame.
fn saturate(queues: &mut Receive<u32>, costs: &[Duration], time: Duration) -> Vec<Duration> {
    let mut now = Instant::ZERO;
    for port in 0..costs.len() as u32 {
        for frame in 0..2 {
            queues.push(now, Port(port), frame, size(1_538)).unwrap();
        }
    }
    while now < Instant::ZERO + time {
        let Taken::Packet { port, packet, bytes } = take(queues, now) else { panic!("they never run empty") };
        now = now + costs[port.0 as usize];
        queues.charge(now, port, costs[port.0 as usize]);
        queues.push(now, port, packet, size(bytes)).unwrap();
    }
    (0..costs.len()).map(|port| queues.cpu(Port(port as u32)).unwrap()).collect()
}

#[test]
fn a_full_queue_drops_and_counts_and_others_do_not_notice() {
    let mut queues = queues(&[UNLIMITED, UNLIMITED]);
    for frame in 0..100 {
        assert_eq!(queues.push(Instant::ZERO, Port(0), frame, size(84)), Ok(()));
    }
    assert_eq!(queues.push(Instant::ZERO, Port(0), 100, size(84)), Err(Drop::QueueFull));
    assert_eq!(
        queues.push(Instant::ZERO, Port(1), 0, size(150_001)),
        Ok(()),
        "longer than the bound, into an empty queue"
    );
    assert_eq!(queues.push(Instant::ZERO, Port(1), 1, size(84)), Err(Drop::QueueFull), "the bound in bytes");
    assert_eq!(queues.push(Instant::ZERO, Port(2), 1, size(84)), Err(Drop::NoReceiver), "there is no such NIC");
    let taken = take(&mut queues, Instant::ZERO);
    assert_eq!(taken, Taken::Packet { port: Port(0), packet: 0, bytes: 84 }, "it came first");
    assert_eq!(queues.push(Instant::ZERO, Port(0), 100, size(84)), Ok(()));
    assert_eq!(queues.queued(Port(0)), 100);
}

#[test]
fn cpu_time_is_shared_by_weight_whatever_a_frame_costs() {
    let mut queues = queues(&[weighted(300), weighted(100)]);
    let got = saturate(&mut queues, &[MICRO, 2 * MICRO], Duration::from_millis(8));
    let first = got[0].as_nanos() as f64 / 8e6;
    assert!((first - 0.75).abs() < 0.001, "{got:?}");
}

#[test]
fn the_largest_and_the_smallest_weight_are_kept() {
    let policy = |weight| ReceivePolicy { weight, ..UNLIMITED };
    let mut queues = queues(&[policy(Weight::MAX), policy(Weight::MAX), policy(Weight::MIN)]);
    let got = saturate(&mut queues, &[MICRO, MICRO, MICRO], Duration::from_millis(10));
    assert_eq!(got[2], MICRO, "one frame of 10,000 at a hundred-millionth of their weight");
    assert_eq!(got[0].abs_diff(got[1]), MICRO);
}

#[test]
fn a_thousand_nics_get_the_same() {
    let mut queues = queues(&[UNLIMITED; 1_000]);
    let got = saturate(&mut queues, &[MICRO; 1_000], Duration::from_millis(20));
    assert!(got.iter().all(|cpu| *cpu == 20 * MICRO));
}

#[test]
fn an_idle_nic_does_not_catch_up() {
    let mut queues = queues(&[UNLIMITED, UNLIMITED]);
    for frame in 0..50 {
        queues.push(Instant::ZERO, Port(0), frame, size(84)).unwrap();
    }
    for _ in 0..20 {
        assert!(matches!(take(&mut queues, Instant::ZERO), Taken::Packet { port: Port(0), .. }));
        queues.charge(Instant::ZERO, Port(0), MICRO);
    }
    for frame in 0..50 {
        queues.push(Instant::ZERO, Port(1), frame, size(84)).unwrap();
    }
    let mut order = Vec::new();
    for _ in 0..10 {
        let Taken::Packet { port, .. } = take(&mut queues, Instant::ZERO) else { panic!("frames wait") };
        queues.charge(Instant::ZERO, port, MICRO);
        order.push(port.0);
    }
    assert_eq!(order, [1, 0, 1, 0, 1, 0, 1, 0, 1, 0], "by turns");
}

#[test]
fn a_limit_is_paced_and_the_wait_ends_when_it_says() {
    let mut queues = queues(&[limited(1_000_000, 2_000)]);
    let mut now = Instant::ZERO;
    let mut sent = 0;
    for frame in 0..100 {
        queues.push(now, Port(0), frame, size(1_000)).unwrap();
    }
    let mut passed = Vec::new();
    while sent < 100 {
        match take(&mut queues, now) {
            Taken::Packet { bytes, .. } => {
                sent += 1;
                passed.push((now.as_nanos(), bytes));
            }
            Taken::WaitUntil(until) => {
                assert!(until > now);
                now = until;
            }
            Taken::Idle => panic!("frames wait"),
        }
    }
    assert_eq!(passed[..4], [(0, 1_000), (0, 1_000), (1_000_000, 1_000), (2_000_000, 1_000)]);
    assert_eq!(now, nanos(98_000_000), "100 kB less the burst at 1 MB/s");
    assert_eq!(take(&mut queues, now), Taken::Idle);
}

#[test]
fn a_frame_larger_than_the_burst_passes_and_is_paid_for() {
    let mut queues = queues(&[limited(1_000_000, 2_000)]);
    for frame in 0..2 {
        queues.push(Instant::ZERO, Port(0), frame, size(64_000)).unwrap();
    }
    assert!(matches!(take(&mut queues, Instant::ZERO), Taken::Packet { packet: 0, .. }));
    assert_eq!(take(&mut queues, Instant::ZERO), Taken::WaitUntil(nanos(64_000_000)));
}

#[test]
fn a_limit_put_on_a_nic_that_ran_without_one_holds_from_then_on() {
    let mut queues = queues(&[UNLIMITED]);
    for frame in 0..100 {
        queues.push(Instant::ZERO, Port(0), frame, size(1_000)).unwrap();
    }
    for _ in 0..50 {
        assert!(matches!(take(&mut queues, Instant::ZERO), Taken::Packet { .. }));
    }
    queues.set(nanos(5), Port(0), limited(1_000_000, 1_000));
    assert!(matches!(take(&mut queues, nanos(5)), Taken::Packet { .. }), "the burst");
    assert_eq!(take(&mut queues, nanos(5)), Taken::WaitUntil(nanos(1_000_005)));
    queues.set(nanos(5), Port(0), limited(2_000_000, 1_000));
    assert_eq!(take(&mut queues, nanos(5)), Taken::WaitUntil(nanos(500_005)));
    queues.set(nanos(5), Port(0), UNLIMITED);
    assert!(matches!(take(&mut queues, nanos(5)), Taken::Packet { .. }));
}

#[test]
fn a_guest_without_buffers_loses_only_its_own_frames() {
    let mut queues = queues(&[limited(1_000_000, 1_000), UNLIMITED]);
    for frame in 0..100 {
        queues.push(Instant::ZERO, Port(0), frame, size(1_000)).unwrap();
    }
    let Taken::Packet { port, packet, bytes } = take(&mut queues, Instant::ZERO) else { panic!("a frame waits") };
    give_back(&mut queues, Instant::ZERO, port, packet, bytes);
    assert_eq!(take(&mut queues, Instant::ZERO), Taken::Idle);
    assert_eq!(queues.push(Instant::ZERO, Port(0), 100, size(1_000)), Err(Drop::NoBuffers));
    queues.push(Instant::ZERO, Port(1), 7, size(1_000)).unwrap();
    assert!(matches!(take(&mut queues, Instant::ZERO), Taken::Packet { port: Port(1), packet: 7, .. }));
    queues.resume(Instant::ZERO, Port(0));
    let taken = take(&mut queues, Instant::ZERO);
    assert_eq!(taken, Taken::Packet { port: Port(0), packet: 0, bytes: 1_000 }, "in order, and not charged twice");
    assert_eq!(take(&mut queues, Instant::ZERO), Taken::WaitUntil(nanos(1_000_000)));
}

#[test]
fn what_a_frame_stood_for_is_given_back_in_its_place() {
    let mut queues = queues(&[UNLIMITED, UNLIMITED]);
    for frame in [1, 5] {
        queues.push(Instant::ZERO, Port(0), frame, size(3_000)).unwrap();
    }
    let first = queues.turn(Instant::ZERO).unwrap();
    assert_eq!(queues.take(Instant::ZERO, first), Some((1, size(3_000))));
    queues.give_back(Instant::ZERO, first, [3, 4].map(|part| (part, size(1_000))).into_iter());
    assert_eq!((queues.turn(Instant::ZERO), queues.take(Instant::ZERO, first)), (None, None), "it is paused");
    queues.resume(Instant::ZERO, first);
    let order: Vec<_> = std::iter::from_fn(|| queues.take(Instant::ZERO, first)).map(|(packet, _)| packet).collect();
    assert_eq!(order, [3, 4, 5]);
    queues.push(Instant::ZERO, first, 6, size(1_000)).unwrap();
    queues.give_back(Instant::ZERO, first, [(7, size(1_000))].into_iter());
    assert_eq!(queues.drain(first).collect::<Vec<_>>(), [7, 6]);
    queues.resume(Instant::ZERO, first);
    assert_eq!((queues.turn(Instant::ZERO), queues.next_due()), (None, None));
    queues.push(Instant::ZERO, first, 8, size(150_000)).unwrap();
    assert_eq!(queues.turn(Instant::ZERO), Some(first), "the memory was freed");
}

#[test]
fn a_removed_nic_returns_its_frames_and_is_never_served() {
    let mut queues = queues(&[limited(1_000, 100), UNLIMITED]);
    for port in [0, 1] {
        for frame in 0..3 {
            queues.push(Instant::ZERO, Port(port), frame, size(1_000)).unwrap();
        }
    }
    assert!(matches!(take(&mut queues, Instant::ZERO), Taken::Packet { port: Port(0), .. }));
    assert_eq!(queues.remove(Port(0)).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(queues.remove(Port(1)).count(), 3);
    assert_eq!(take(&mut queues, nanos(u64::MAX)), Taken::Idle);
    assert_eq!(queues.remove(Port(9)).count(), 0);
    assert_eq!(queues.add(Instant::ZERO, Port(0), UNLIMITED, BOUNDS), Ok(()));
    assert_eq!(queues.add(Instant::ZERO, Port(0), UNLIMITED, BOUNDS), Err(SwitchError::PortTaken(0)));
    let range = SwitchError::PortRange { port: 1 << 20, ports: 1 << 20 };
    assert_eq!(queues.add(Instant::ZERO, Port(1 << 20), UNLIMITED, BOUNDS), Err(range));
}

/// A NIC of the smallest weight reaches the end of virtual time within minutes of CPU time.
#[test]
fn shares_hold_when_virtual_time_comes_to_its_end() {
    let weight = |weight| ReceivePolicy { weight, ..UNLIMITED };
    let mut queues = queues(&[weight(Weight::MIN), weight(Weight::from_hundredths(3))]);
    let mut now = Instant::ZERO;
    for port in [0, 1] {
        (0..2).for_each(|frame| queues.push(now, Port(port), frame, size(84)).unwrap());
    }
    let second = Duration::from_secs(1);
    for _ in 0..1_200 {
        let Taken::Packet { port, packet, bytes } = take(&mut queues, now) else { panic!("they never run empty") };
        now = now + second;
        queues.charge(now, port, second);
        queues.push(now, port, packet, size(bytes)).unwrap();
    }
    let got = [0, 1].map(|port| queues.cpu(Port(port)).unwrap().as_secs());
    assert!((299..=301).contains(&got[0]), "{got:?}");
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Push(u32, u32),
    Take { wait: u64, deliver: bool, cpu: u64 },
    Resume(u32),
    Set(u32, Option<u64>, u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0u32..4, 60u32..70_000).prop_map(|(port, bytes)| Step::Push(port, bytes)),
        4 => (0u64..1 << 21, prop::bool::weighted(0.8), 0u64..10_000)
            .prop_map(|(wait, deliver, cpu)| Step::Take { wait, deliver, cpu }),
        1 => (0u32..4).prop_map(Step::Resume),
        1 => (0u32..4, proptest::option::of(1_024u64..1 << 32), 1u32..1_000)
            .prop_map(|(port, limit, weight)| Step::Set(port, limit, weight)),
    ];
    proptest::collection::vec(step, 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Each frame is delivered once and in its order, or returned when it is pushed. Nobody waits for the past, and when all may go,
    /// all go.
    #[test]
    fn every_frame_is_delivered_once_and_in_order(steps in steps()) {
        let mut queues = queues(&[UNLIMITED; 4]);
        let (mut now, mut number) = (Instant::ZERO, 0);
        let mut expected: [VecDeque<u32>; 4] = Default::default();
        for step in steps {
            match step {
                Step::Push(port, bytes) => {
                    number += 1;
                    match queues.push(now, Port(port), number, size(bytes)) {
                        Ok(()) => expected[port as usize].push_back(number),
                        Err(reason) => prop_assert!(matches!(reason, Drop::QueueFull | Drop::NoBuffers)),
                    }
                }
                Step::Take { wait, deliver, cpu } => {
                    now = now + Duration::from_nanos(wait);
                    match take(&mut queues, now) {
                        Taken::Packet { port, packet, bytes } if !deliver => give_back(&mut queues, now, port, packet, bytes),
                        Taken::Packet { port, packet, .. } => {
                            prop_assert_eq!(expected[port.0 as usize].pop_front(), Some(packet));
                            queues.charge(now, port, Duration::from_nanos(cpu));
                        }
                        Taken::WaitUntil(until) => prop_assert!(until > now),
                        Taken::Idle => {}
                    }
                }
                Step::Resume(port) => queues.resume(now, Port(port)),
                Step::Set(port, limit, weight) => {
                    let limit = limit.map_or(UNLIMITED, |limit| limited(limit, 10_000));
                    queues.set(now, Port(port), ReceivePolicy { weight: Weight::new(weight), ..limit });
                }
            }
        }
        (0..4).for_each(|port| queues.resume(now, Port(port)));
        loop {
            match take(&mut queues, now) {
                Taken::Packet { port, packet, .. } => prop_assert_eq!(expected[port.0 as usize].pop_front(), Some(packet)),
                Taken::WaitUntil(until) => now = until,
                Taken::Idle => break,
            }
        }
        prop_assert!(expected.iter().all(VecDeque::is_empty));
        prop_assert!((0..4).all(|port| queues.queued(Port(port)) == 0));
    }
}
