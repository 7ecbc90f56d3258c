//! VMMs that disconnect, truncate their memory, leave a log, or never stop sending or start a queue.

use super::*;

/// The session does not wait for a throttled request whose VMM has disconnected.
#[test]
fn the_resources_of_a_vmm_that_disconnects_during_a_stop_are_freed() {
    let bench = Bench::new();
    let mut policy = Policy::default();
    policy.limit.iops = Some(Iops::from_milli(10));
    policy.burst = Some(1);
    let (vm, window) = ("vm".to_owned(), Window { requests: 64, bytes: 32 << 20 });
    bench.device.edit(vec![Edit::SetPolicies { vm, policy, window, volumes: Vec::new() }]).unwrap();
    let mut client = bench.connect(&options());
    for slot in 0..5 {
        client.queue(0).submit(slot, Request::Read { offset: 0, len: 4096 }).unwrap();
    }
    client.queue(0).publish().unwrap();
    while bench.device.snapshot().unwrap().vms[0].outstanding != 4 {}
    let stop = VhostUserVringState::new(0, 0);
    client.session().unwrap().link().send(FrontendReq::GET_VRING_BASE as u32, 0, stop.as_slice(), &[]).unwrap();
    drop(client);
    bench.vmm().features().unwrap();
    assert_eq!(bench.device.snapshot().unwrap().vms[0].outstanding, 0);
    assert_eq!((bench.totals().sessions, bench.totals().faults), (2, 0));
}

#[test]
fn a_vmm_that_truncates_its_memory_is_disconnected() {
    let bench = Bench::new();
    let (vmm, len) = (bench.vmm(), 16 * PAGE as u64);
    let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, len).unwrap();
    let region = VhostUserMemoryRegion::new(0, len, 1 << 32, 0);
    let table = [VhostUserMemory::new(1).as_slice(), region.as_slice()].concat();
    vmm.tell(FrontendReq::SET_MEM_TABLE, &table, &[file.as_fd()]).unwrap();
    vmm.set_features(ALL_FEATURES & vmm.features().unwrap()).unwrap();
    vmm.set_ring_size(0, 64).unwrap();
    vmm.set_ring_addresses(0, [1 << 32, (1 << 32) + 4096, (1 << 32) + 8192]).unwrap();
    vmm.enable_ring(0, true).unwrap();
    ftruncate(&file, 0).unwrap();
    // Starting the ring reads its indices.
    let started = vmm.set_ring_kick(0, Some(ring_fd().as_fd()));
    assert!(matches!(started, Ok(()) | Err(ClientError::Closed)), "{started:?}");
    assert!(is_over(&vmm));
    assert_eq!(bench.totals().faults, 1);
    bench.still_serves();
}

#[test]
fn an_in_flight_log_outlives_its_daemon() {
    let bench = Bench::new();
    let mut client = bench.connect(&options());
    write_and_read(&mut client);
    let log = client.inflight().unwrap();
    assert_eq!((log.len, log.queues, log.queue_size), (16 + 256 * 16 + 48, 1, 256));
    client.disconnect();
    // The next VMM is served when the session has ended.
    bench.still_serves();
    // As if the daemon had been killed with a read in flight: taken, and not returned.
    client.queue(0).submit(5, Request::Read { offset: 12288, len: 4096 }).unwrap();
    client.queue(0).publish().unwrap();
    let [_, available, _] = client.queue(0).ring().parts();
    let last = usize::from(client.memory().u16(available + 2).load(Ordering::Relaxed).wrapping_sub(1) % 256);
    let head = client.memory().u16(available + 4 + 2 * last).load(Ordering::Relaxed);
    let log = client.inflight().unwrap();
    let shape = VhostUserInflight::new(log.len, log.offset, log.queues, log.queue_size);
    let mut part = Log::open(&shape, &log.file, &MappingOwner { fault_event: Some(Arc::new(ring_fd())), quota: None })
        .unwrap()
        .queue(0, 256)
        .unwrap();
    let used = client.queue(0).ring().used_index();
    assert_eq!((used, part.recover(used).len()), (3, 0), "returned requests are not in it");
    part.taken(head);
    drop(part);
    let second = bench.folder.path().join("second.sock");
    let (_listener, stop, control) = listen(second.clone(), &bench.entry, &bench.connections);
    client.reconnect(&second).unwrap();
    let answers = client.wait(0, 1).unwrap();
    assert_eq!((answers.len(), answers[0].slot, answers[0].status), (1, 5, 0), "done again, and answered once");
    let mut read = [0; 4096];
    client.queue(0).read_data(5, &mut read);
    assert_eq!(read[..4], [0, 1, 2, 3]);
    write_and_read(&mut client);
    assert_eq!(client.stop_queue(0).unwrap(), 7);
    drop(stop);
    control.join().unwrap();
}

#[test]
fn logs_of_a_wrong_size_are_rejected() {
    let bench = Bench::new();
    let vmm = bench.vmm();
    let log = vmm.inflight(4, 64).unwrap();
    vmm.set_inflight(&log).unwrap();
    let ask = |payload: &[u8]| vmm.tell(FrontendReq::GET_INFLIGHT_FD, payload, &[]);
    let short = vmm.ask(FrontendReq::GET_INFLIGHT_FD, &log_shape(2, 128)[..20], &[]).unwrap();
    assert_eq!((short.payload.len(), short.files.len()), (20, 1), "some compilers put no padding there");
    let mut bad = log;
    bad.queue_size = 128;
    assert!(is_refused(vmm.set_inflight(&bad)), "not the size for which it was created");
    bad.queues = 5;
    assert!(is_refused(vmm.set_inflight(&bad)), "more queues than there are");
    (bad.queues, bad.queue_size, bad.len) = (4, 64, 64);
    assert!(is_refused(vmm.set_inflight(&bad)), "too small");
    assert!(matches!(ask(&log_shape(0, 64)), Err(ClientError::Closed)), "a query without a reply");
    bench.still_serves();
}

fn log_shape(queues: u16, entries: u16) -> Vec<u8> {
    VhostUserInflight::new(0, 0, queues, entries).as_slice().to_vec()
}

#[test]
fn a_vmm_that_sends_without_pause_does_not_block_others() {
    let bench = Bench::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let messages = 100u32;
    let ours = sluice_client::vhost::link::Link::new(ours, PATIENCE).unwrap();
    (0..messages).for_each(|_| ours.send(FrontendReq::GET_FEATURES.into(), 0, &[], &[]).unwrap());
    theirs.set_nonblocking(true).unwrap();
    let (_entry, offered) = watch::channel(Some(bench.entry.clone()));
    let turns = runtime.block_on(async {
        let stream = Arc::new(UnixStream::from_std(theirs).unwrap());
        let session =
            tokio::spawn(serve(stream, offered, Box::new(()), Arc::new(Counts::default()), Arc::new(Bounds::new())));
        // The time before the first reply is that of the device thread.
        let mut turns = 0;
        for message in 0..messages {
            while rustix::io::ioctl_fionread(&ours).unwrap() < 20 {
                turns += u32::from(message > 0);
                tokio::task::yield_now().await;
            }
            ours.receive().unwrap();
        }
        session.abort();
        turns
    });
    assert!(turns >= messages - 1, "{turns} turns");
}

/// Runs blocking work on the socket while the clock stands still.
async fn while_time_stands_still<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

fn say_what_it_can(path: PathBuf) -> Vmm {
    let mut vmm = Vmm::connect(&path, PATIENCE).unwrap();
    vmm.set_protocol_features(ALL_PROTOCOL_FEATURES.bits()).unwrap();
    // The reply means that the device thread has opened the session, before the test advances the clock.
    vmm.features().unwrap();
    vmm
}

#[tokio::test(start_paused = true)]
async fn a_vmm_that_never_started_a_queue_held_its_volume_for_ever() {
    let (_device, entry, folder) = device(None);
    let path = folder.path().join("vm.sock");
    let connections = Arc::new(SharedLimit::default());
    connections.set_max(8);
    let endpoint = Endpoint::Unix { path: path.clone(), owner: None, group: None, mode: 0o600 };
    let mut listener = VhostListener::start(Bound::bind(endpoint, None).unwrap(), Some(entry), &connections).unwrap();
    listener.open();
    let knock = |path: &PathBuf| {
        let path = path.clone();
        while_time_stands_still(move || Client::connect(&path, &options()))
    };

    let at = path.clone();
    let late = while_time_stands_still(move || say_what_it_can(at)).await;
    assert!(knock(&path).await.is_err(), "the first VMM still has time");
    tokio::time::advance(START_MAX - Duration::from_secs(1)).await;
    assert!(knock(&path).await.is_err(), "the second VMM still has time");
    tokio::time::advance(Duration::from_secs(1)).await;
    let mut running = knock(&path).await.unwrap();
    assert!(while_time_stands_still(move || is_over(&late)).await, "it was disconnected");

    // Its queues are started, and then stopped.
    tokio::time::advance(10 * START_MAX).await;
    assert!(knock(&path).await.is_err());
    let mut running = while_time_stands_still(move || {
        write_and_read(&mut running);
        running.stop_queue(0).unwrap();
        running
    })
    .await;
    tokio::time::advance(10 * START_MAX).await;
    assert!(knock(&path).await.is_err());
    while_time_stands_still(move || running.start_queue(0, 0)).await.unwrap();
}

#[test]
fn a_vmm_that_repeats_messages_or_connects_again_and_again_waits() {
    let bench = Bench::new();
    let vmm = bench.vmm();
    let began = std::time::Instant::now();
    while bench.listener.counts().messages() < 4096 + 500 {
        vmm.features().unwrap();
    }
    assert!(began.elapsed() >= Duration::from_millis(990), "500 messages above the burst, 2 ms each");
    drop(vmm);
    let began = std::time::Instant::now();
    for _ in 0..64 + 4 {
        drop(bench.vmm());
    }
    assert!(began.elapsed() >= Duration::from_millis(150), "4 connections above the burst, 50 ms each");
    bench.still_serves();
}
