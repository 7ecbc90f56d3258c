use std::net::{Ipv4Addr, Ipv6Addr};

use tokio::task::JoinHandle;

use super::*;

/// Waits for `events` in virtual time. Returns how long that took.
async fn wait_for(pace: &Pace, events: u32) -> Duration {
    let began = Instant::now();
    for _ in 0..events {
        pace.wait().await;
    }
    began.elapsed()
}

/// Connects `times`, one after the other. Returns how long that took.
async fn connect(paces: &mut PeerPaces, peer: Peer, times: u32) -> Duration {
    let began = Instant::now();
    for _ in 0..times {
        paces.of(peer).wait().await;
    }
    began.elapsed()
}

/// Connects `times` concurrently.
fn connect_at_once(paces: &mut PeerPaces, peer: Peer, times: u32) -> Vec<JoinHandle<()>> {
    let start = |pace: PeerPace| tokio::spawn(async move { pace.wait().await });
    (0..times).map(|_| start(paces.of(peer))).collect()
}

async fn all(tasks: Vec<JoinHandle<()>>) {
    for task in tasks {
        task.await.unwrap();
    }
}

fn process(user: u32, process: i32) -> Peer {
    Peer::Process { user: Some(user), process: Some(process) }
}

fn v4(last: u32) -> Peer {
    Peer::Address(Ipv4Addr::from_bits(0xc000_0200 + last).into())
}

/// Whether it is `expected`, or up to two ticks of the timer longer.
fn is_about(took: Duration, expected: Duration) -> bool {
    took >= expected && took <= expected + Duration::from_millis(2)
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_repeats_anything_costs_a_bounded_part_of_a_cpu() {
    let all =
        [Pace::of_ring_starts(), Pace::of_messages(), Pace::of_connections(), Pace::of_clients(), Pace::of_tenants()];
    for pace in all {
        let (burst, interval) = (pace.burst, pace.interval);
        assert_eq!(wait_for(&pace, burst).await, Duration::ZERO, "a VM with many rings boots without a delay");
        let (took, expected) = (wait_for(&pace, 64).await, interval * 64);
        assert!(is_about(took, expected), "{took:?}, not {expected:?}");
        tokio::time::advance(interval * 2 * burst).await;
        assert_eq!(wait_for(&pace, burst).await, Duration::ZERO, "the burst is available again after a pause");
    }
}

#[tokio::test(start_paused = true)]
async fn clients_that_open_many_connections_or_connect_again_all_the_time_are_not_delayed() {
    let mut paces = PeerPaces::default();
    let began = Instant::now();
    for peer in [process(0, 1), v4(1)] {
        for _ in 0..16 {
            all(connect_at_once(&mut paces, peer, 16)).await;
        }
        assert_eq!(began.elapsed(), Duration::ZERO, "16 connections for each of 16 disks");
    }
    tokio::time::advance(Duration::from_secs(6)).await;
    for second in 0..600 {
        assert_eq!(connect(&mut paces, process(0, 2), 20).await, Duration::ZERO, "second {second}");
        tokio::time::advance(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_loop_waits_and_delays_no_other_peer() {
    for (hostile, other) in [(process(1000, 1), process(1000, 2)), (v4(1), v4(2))] {
        let mut paces = PeerPaces::default();
        let began = Instant::now();
        let looping = connect_at_once(&mut paces, hostile, 256 + 500);
        tokio::task::yield_now().await;
        assert_eq!(connect(&mut paces, other, 256).await, Duration::ZERO);
        all(looping).await;
        assert!(is_about(began.elapsed(), Duration::from_secs(10)), "500 at 50 per second: {:?}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_becomes_another_peer_for_each_connection_is_limited_too() {
    let forks = |number| process(1000, number as i32);
    let network = |number| Peer::Address(Ipv6Addr::from_bits(0x2001_0db8 << 96 | number).into());
    let loopback = |number: u128| Peer::Address(Ipv4Addr::from_bits(0x7f00_0001 + number as u32).into());
    let disguises: [&dyn Fn(u128) -> Peer; 3] = [&forks, &network, &loopback];
    for new in disguises {
        let mut paces = PeerPaces::default();
        let began = Instant::now();
        for number in 1..=1024 + 400 {
            paces.of(new(number)).wait().await;
        }
        let expected = Duration::from_secs(2);
        assert!(is_about(began.elapsed(), expected), "400 at 200 per second: {:?}", began.elapsed());
        assert!(paces.0.known.len() <= PEERS_MAX);
    }
}

#[tokio::test(start_paused = true)]
async fn processes_with_many_connections_delay_the_others_of_their_user_by_one() {
    let mut paces = PeerPaces::default();
    for number in 0..16 {
        connect(&mut paces, process(1000, number), 64).await;
    }
    // The user's burst is used up, and each process has some of its own. A loop of each connects a few times a second then.
    tokio::time::advance(Duration::from_secs(1)).await;
    connect(&mut paces, process(1000, 0), 200).await;
    let many: Vec<_> = (0..16).flat_map(|number| connect_at_once(&mut paces, process(1000, number), 100)).collect();
    tokio::task::yield_now().await;
    let took = connect(&mut paces, process(1000, 99), 1).await;
    assert!(took <= Duration::from_millis(12), "one of the others, and its own: {took:?}");
    assert_eq!(connect(&mut paces, process(1001, 7), 1).await, Duration::ZERO, "another user");
    all(many).await;
}

#[tokio::test(start_paused = true)]
async fn connections_that_are_given_up_while_they_wait_do_not_count() {
    let mut paces = PeerPaces::default();
    connect(&mut paces, v4(1), 256).await;
    for _ in 0..100 {
        let given_up = connect_at_once(&mut paces, v4(1), 10);
        tokio::task::yield_now().await;
        for task in given_up {
            task.abort();
            assert!(task.await.unwrap_err().is_cancelled());
        }
    }
    let took = connect(&mut paces, v4(1), 1).await;
    assert!(is_about(took, Duration::from_millis(20)), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn tens_of_thousands_of_addresses_take_bounded_memory() {
    let mut paces = PeerPaces::default();
    for number in 0..50_000 {
        paces.of(v4(number)).wait().await;
        assert!(paces.0.known.len() <= PEERS_MAX);
        if number % 20 == 0 {
            tokio::time::advance(Duration::from_millis(1)).await;
        }
    }
    assert_eq!(connect(&mut paces, v4(0), 1).await, Duration::ZERO, "20,000 addresses per second fit");
    // With all places taken by peers that are connecting, others share a limit.
    tokio::time::advance(Duration::from_secs(1)).await;
    let busy: Vec<PeerPace> = (0..PEERS_MAX as u32).map(|number| paces.of(v4(100_000 + number))).collect();
    assert_eq!(paces.0.known.len(), PEERS_MAX);
    let began = Instant::now();
    for number in 0..1224 {
        paces.of(v4(200_000 + number)).wait().await;
        assert_eq!(paces.0.known.len(), PEERS_MAX);
    }
    assert!(is_about(began.elapsed(), Duration::from_secs(1)), "200 at 200 per second: {:?}", began.elapsed());
    drop(busy);
    assert_eq!(connect(&mut paces, v4(300_000), 1).await, Duration::ZERO, "places of idle peers are free again");
}

#[tokio::test(start_paused = true)]
async fn a_vm_with_many_sockets_connected_as_often_as_it_had_sockets() {
    let paces = VmPaces::default();
    let (vm, other) = ("a".to_owned(), "b".to_owned());
    let began = Instant::now();
    for _ in 0..1024 + 200 {
        paces.wait(&vm).await;
    }
    assert!(is_about(began.elapsed(), Duration::from_secs(1)), "200 at 200 per second: {:?}", began.elapsed());
    let began = Instant::now();
    paces.wait(&other).await;
    assert_eq!(began.elapsed(), Duration::ZERO);
}
