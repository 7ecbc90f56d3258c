//! Gives received frames to NICs, by their shares of the thread's CPU time.
//!
//! A NIC has its turn until it has taken some frames or has none that may go. Then it is charged the time that this took, and the NIC that has
//! used the least for its weight is next. An iteration ends its deliveries after [`TIME_MAX`]: what is left waits in the
//! queues of its NICs, which are bounded, so a thread that gets more than it can deliver drops frames of those that are over their share.

use std::sync::Arc;
use std::time::Duration;

use sluice_net::drop::Drop as Reason;
use sluice_sched::Instant;

use crate::cpu;
use crate::uplink::core::Core;
use crate::uplink::link::{Link, Sent};
use crate::uplink::nic::{Incoming, Nic};
use crate::uplink::spec::NicPlug;
use crate::uplink::vhost_net::VhostNet;

/// Maximum number of frames of a turn: the clock is not read for each of them.
const TURN_MAX: u32 = 16;
/// Time after which an iteration starts no further turn.
const TIME_MAX: Duration = Duration::from_micros(250);

/// Gives received frames to NICs.
pub(crate) fn deliver(core: &mut Core, vhost: &mut VhostNet, now: Instant) {
    let Some(mut port) = core.receive.turn(now) else { return };
    let start = core.base.clock.now();
    let mut charged = start;
    loop {
        for _ in 0..TURN_MAX {
            let Some((incoming, size)) = core.receive.take(now, port) else { break };
            let id = core.nics.id_at(port.0);
            match &core.nics[id].spec.plug {
                NicPlug::Tap(link) => {
                    let link = Arc::clone(link);
                    core.count_delivered(id, cpu::delivered(incoming.bytes.len()));
                    give_to_tap(&mut core.nics[id], &link, &incoming);
                }
                NicPlug::VhostUser => vhost.give(core, now, id, incoming, size),
            }
            if core.receive.turn(now) != Some(port) {
                break;
            }
        }
        let at = core.base.clock.now();
        core.receive.charge(now, port, at.since(charged));
        charged = at;
        match core.receive.turn(now) {
            Some(next) if at.since(start) < TIME_MAX => port = next,
            _ => return,
        }
    }
}

/// Gives a frame to a TAP. One that it does not take is dropped.
fn give_to_tap(nic: &mut Nic, link: &Link, incoming: &Incoming) {
    let bytes = &incoming.bytes;
    let part = || libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: the frame is held until the call returns.
    match unsafe { link.send(&incoming.header, &mut [part(), part()]) } {
        Sent::Done => nic.count_received(bytes.len()),
        Sent::Full => nic.drop_frame(Reason::NoBuffers),
        Sent::Lost(reason) => nic.drop_frame(reason),
    }
}
