//! Limits of reads and of writes over NBD.

use crate::common::raw::{READ, Raw, WRITE};
use crate::common::{Daemon, MIB, Place};

/// 6 writes of 8 KiB at 20 per second take 0.25 s after the first. The read behind them is answered before the last of them.
#[test]
fn a_read_behind_throttled_writes_is_answered_first() {
    let place = Place::new();
    let volume = place.volume("a", "v", &place.image("a.img", MIB), "");
    let host = place.device("capacity = \"1000 iops@8KiB\"");
    let host = host + "[vm.a]\nwrite_limit = \"20 iops\"\nburst = 1\nallow_slow = true\n" + &volume;
    let _daemon = Daemon::serve(&place, &host);
    let mut client = Raw::open(&place.volume_socket("a", "v"), "a/v").unwrap();
    let data = vec![7; 8192];
    let writes: Vec<u64> = (0..6).map(|at| client.send(WRITE, 0, at * 8192, 8192, &data).unwrap()).collect();
    let read = client.send(READ, 0, 512 << 10, 4096, &[]).unwrap();
    let mut answered = Vec::new();
    for _ in 0..7 {
        let (cookie, error) = client.reply().unwrap();
        assert_eq!(error, 0);
        if cookie == read {
            client.data(4096).unwrap();
        }
        answered.push(cookie);
    }
    let place_of = |cookie: u64| answered.iter().position(|known| *known == cookie).unwrap();
    assert!(place_of(read) < place_of(writes[5]), "{answered:?}, the read is {read}");
    let in_order: Vec<u64> = answered.iter().copied().filter(|cookie| *cookie != read).collect();
    assert_eq!(in_order, writes);
}
