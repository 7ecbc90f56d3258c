//! Sizes of a VM's requests, and its policy converted to normalised requests of these sizes.

use sluice_sched::Policy;

use super::plan::{Ask, Cloud, Plan, Use};
use super::run::VmRun;

/// Bytes, bytes counted against a reservation, and pieces per normalised request of a VM.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub bytes: f64,
    pub reserved_bytes: f64,
    pub pieces: f64,
    /// The largest piece, in normalised requests and in bytes.
    pub piece: f64,
    pub piece_bytes: f64,
}

/// A limit in requests or in bytes, converted to normalised requests of a VM.
#[derive(Debug, Clone, Copy)]
struct Limit {
    rate: f64,
    /// Amount that it passes back to back.
    burst: f64,
    /// The largest piece.
    piece: f64,
}

/// The policy of a VM, in normalised requests of its shape.
#[derive(Debug, Clone)]
pub struct Rates {
    pub min: f64,
    /// Maximum rate of a reservation for requests of mixed sizes, see [`mixed_minimum`].
    pub min_of_each: f64,
    pub max: f64,
    /// Maximum that its limits allow back to back; 0 without a limit.
    pub burst: f64,
    limits: Vec<Limit>,
}

impl Shape {
    /// Shape of the served requests of a VM, or of its mix if none was served. A VM's requests are served in order of arrival,
    /// so the shape does not depend on the scheduler.
    pub fn of(plan: &Plan, vm: usize, run: &VmRun) -> Shape {
        let cloud = &plan.cloud;
        let (piece, piece_bytes) = cloud.largest_piece(&plan.vms[vm]);
        let sums = &run.sums;
        let (mut got, mut bytes, mut reserved, mut pieces) = (sums.got, sums.bytes, sums.reserved_bytes, sums.pieces);
        if got == 0.0 {
            for piece in plan.vms[vm].iter().flat_map(|ask| cloud.pieces(*ask)) {
                let cost = cloud.cost.cost(piece.kind, piece.length);
                let moved = cloud.cost.bytes(piece.kind, piece.length, cost);
                got += cost.as_f64();
                bytes += moved as f64;
                reserved += cloud.reserved_bytes(moved, cost) as f64;
                pieces += 1.0;
            }
        }
        Shape { bytes: bytes / got, reserved_bytes: reserved / got, pieces: pieces / got, piece, piece_bytes }
    }
}

impl Rates {
    pub fn of(cloud: &Cloud, used: &Use, shape: &Shape, mix: &[Ask]) -> Rates {
        let policy = &used.policy;
        let by_requests = policy.reservation.iops.map_or(0.0, |iops| iops.as_f64());
        let by_bytes =
            policy.reservation.bytes.map_or(0.0, |rate| rate.bytes_per_second() as f64 / shape.reserved_bytes);
        let burst = cloud.burst(policy);
        // A stated burst of n is n - 1 requests of the reference size, and one that is always allowed, which may be smaller.
        let passes = |burst: f64, reference: f64, piece: f64| match policy.burst {
            Some(_) => burst - (reference - piece).max(0.0),
            None => burst,
        };
        let mut limits = Vec::new();
        if let Some(iops) = policy.limit.iops {
            limits.push(Limit {
                rate: iops.as_f64(),
                burst: passes(burst.requests, 1.0, shape.piece),
                piece: shape.piece,
            });
        }
        if let Some(rate) = policy.limit.bytes.filter(|_| shape.bytes > 0.0) {
            let requests = |bytes: f64| bytes / shape.bytes;
            let rate = requests(rate.bytes_per_second() as f64);
            let reference = cloud.cost.reference_size().0 as f64;
            let burst = passes(burst.bytes, reference, shape.piece_bytes);
            limits.push(Limit { rate, burst: requests(burst), piece: requests(shape.piece_bytes) });
        }
        Rates {
            min: by_requests.max(by_bytes),
            min_of_each: mixed_minimum(cloud, mix, policy, shape).max(by_requests).max(by_bytes),
            max: limits.iter().map(|limit| limit.rate).fold(f64::INFINITY, f64::min),
            burst: limits.iter().map(|limit| limit.burst).fold(0.0, f64::max),
            limits,
        }
    }

    /// Duration of the smallest burst at its limit's rate, in seconds, divided among `nodes` nodes.
    pub fn seconds_of_burst(&self, nodes: f64) -> f64 {
        self.limits.iter().map(|limit| limit.burst / limit.rate / nodes).fold(f64::INFINITY, f64::min)
    }

    pub fn is_limited(&self) -> bool {
        !self.limits.is_empty()
    }

    /// Minimum rate that the limits allow VM `vm` of a plan.
    ///
    /// A limiter whose burst is full accumulates nothing more. The VM loses a part of its limit in three cases:
    /// - It waits for service longer than its burst lasts. With a burst of one request it gets one per `1 / rate + late`.
    ///   Example: a rate of 100/s and 10 ms late, 1 / 0.020 s = 50/s.
    /// - It is served at random instants. Of two opportunities at the same time the limit allows one, and nothing compensates
    ///   for it if others come late. With a burst of b batches the effect is smaller by the square root of b.
    /// - Its pieces differ: one waits for the first limit, the next for the other limit, and a third for the weight.
    pub fn max_late(&self, plan: &Plan, vm: usize, used: &Use, turns: &Turns) -> f64 {
        if turns.share <= 0.0 {
            return self.max;
        }
        let mut rate = self.max;
        let (mut batches, mut late) = (f64::INFINITY, 0.0);
        for limit in &self.limits {
            let (burst, piece) = (limit.burst, limit.piece);
            let held = burst.max(piece);
            batches = batches.min(held / piece.max(turns.batch.unwrap_or(0.0)));
            let margin = if turns.batch.is_some() { 3.0 } else { 1.0 };
            if burst - piece < margin * limit.rate * turns.late {
                rate = rate.min(held / (held / limit.rate + turns.late));
                late = turns.late;
            }
        }
        if batches < 16.0 {
            rate = rate.min(uneven(&plan.cloud, &plan.vms[vm], used, turns.share, late));
        }
        if turns.batch.is_some() {
            rate = rate.min(cut(rate, turns.share, batches.max(1.0)));
        }
        rate
    }
}

/// Opportunities of a VM to be served.
#[derive(Debug, Clone, Copy)]
pub struct Turns {
    /// Maximum wait for a free slot after its limit allows a request, in seconds.
    pub late: f64,
    /// Its rate without a limit, in normalised requests per second.
    pub share: f64,
    /// Normalised requests that arrive or complete at the same instant, if opportunities are random.
    pub batch: Option<f64>,
}

/// The rate that a limit of `rate` allows of random opportunities of rate `share`, averaged over `batches` batches. It is 1
/// over the mean of the larger of two times: that of the limit, and a normally distributed one.
///
/// Example: rate and share 100/s, one batch: both times are 10 ms, the deviation is 10 ms, and the mean of the larger one is
/// 10 + 0.4 x 10 = 14 ms, or 71/s.
fn cut(rate: f64, share: f64, batches: f64) -> f64 {
    let (limit, mean) = (1.0 / rate, 1.0 / share);
    let deviation = mean / batches.sqrt();
    let z = (limit - mean) / deviation;
    let density = (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let below = 1.0 / (1.0 + (-1.5976 * z - 0.070_56 * z * z * z).exp());
    1.0 / (mean + deviation * (density + z * below)).max(limit).max(mean)
}

/// Rate of a VM if each piece waits for the slowest of both limits and its share, and then `late` seconds.
fn uneven(cloud: &Cloud, mix: &[Ask], used: &Use, share: f64, late: f64) -> f64 {
    let (mut costs, mut seconds) = (0.0, 0.0);
    for piece in mix.iter().flat_map(|ask| cloud.pieces(*ask)) {
        let cost = cloud.cost.cost(piece.kind, piece.length);
        let moved = cloud.cost.bytes(piece.kind, piece.length, cost) as f64;
        let by_requests = used.policy.limit.iops.map_or(0.0, |iops| cost.as_f64() / iops.as_f64());
        let by_bytes = used.policy.limit.bytes.map_or(0.0, |rate| moved / rate.bytes_per_second() as f64);
        costs += cost.as_f64();
        seconds += by_requests.max(by_bytes).max(cost.as_f64() / share) + late;
    }
    costs / seconds
}

/// Maximum rate of a reservation for requests of mixed sizes. Two effects increase it; neither exceeds what admission control
/// counts, which is the larger of the reservation in requests and that in bytes over the device's bytes per request:
///
/// - With reservations in requests and in bytes, one request is due by the first and the next one by the other. A dispatch
///   advances the earlier tag by at least the smaller of its two steps, so n requests take at least the sum of n smaller
///   steps. Example: 100 IOPS and 8 MiB/s; requests of 4 KiB and 256 KiB alternate and cost 1 and 2. The smaller steps are
///   1/2048 s (4 KiB of 8 MiB) and 2/100 s, so a cost of 3 takes 0.0205 s, 146/s.
/// - With a reservation in bytes on n nodes, the node that serves a request counts its bytes or its cost, whichever is more. A
///   report counts the sum of bytes or the sum of costs, which is smaller for mixed sizes. Example: a device has 50 KiB per
///   request. 32 KiB at cost 1 count as 50 KiB, and 256 KiB at cost 3 as 256 KiB, 306 KiB in total; reported, they are 288 or
///   4 x 50 = 200 KiB. On two nodes half is counted each way, and the reservation yields 306 / 297 of its rate.
fn mixed_minimum(cloud: &Cloud, mix: &[Ask], policy: &Policy, shape: &Shape) -> f64 {
    let Some(rate) = policy.reservation.bytes.map(|rate| rate.bytes_per_second() as f64) else { return 0.0 };
    let nodes = cloud.nodes as f64;
    let reported = shape.bytes.max(cloud.request_bytes as f64);
    let counted = (shape.reserved_bytes + (nodes - 1.0) * reported) / nodes / shape.reserved_bytes;
    let Some(iops) = policy.reservation.iops else { return rate / (counted * shape.reserved_bytes) };
    let (mut costs, mut seconds) = (0.0, 0.0);
    for piece in mix.iter().flat_map(|ask| cloud.pieces(*ask)) {
        let cost = cloud.cost.cost(piece.kind, piece.length);
        let moved = cloud.cost.bytes(piece.kind, piece.length, cost);
        costs += cost.as_f64();
        seconds += (cost.as_f64() / iops.as_f64()).min(counted * cloud.reserved_bytes(moved, cost) as f64 / rate);
    }
    costs / seconds
}
