//! A plan: devices, VMs, and the policy and load of each VM in each phase. Plain data that can be printed and shrunk.

use std::fmt;

use sluice_sched::admission::Capacity;
use sluice_sched::gate::GateSettings;
use sluice_sched::scheduler::{DeviceClass, DeviceInfo};
use sluice_sched::{ByteRate, Bytes, Cost, CostModel, Iops, Kind, Policy};

#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub cloud: Cloud,
    /// The kinds of requests of each VM.
    pub vms: Vec<Vec<Ask>>,
    pub phases: Vec<Phase>,
}

/// The nodes, which are all equal, each with a device and a gate.
#[derive(Debug, Clone, Copy)]
pub struct Cloud {
    pub nodes: usize,
    /// Normalised requests per second of all nodes together.
    pub capacity: f64,
    /// Queue depth of each node.
    pub depth: u32,
    /// Number of requests that a device serves concurrently.
    pub servers: u32,
    pub service: Service,
    /// Bandwidth divided by capacity, as stated to the scheduler.
    pub request_bytes: u64,
    pub cost: CostModel,
    pub placement: Placement,
}

/// Service time of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Service {
    /// Nanoseconds for a request of any size; `None`: in proportion to its cost, so that a device reaches its capacity.
    pub fixed_ns: Option<u64>,
    /// Whether it is exponentially distributed instead of constant.
    pub exponential: bool,
}

/// Choice of the node for a VM's next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    RoundRobin,
    Random,
}

/// One kind of request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ask {
    pub kind: Kind,
    pub length: u32,
}

#[derive(Debug, Clone)]
pub struct Phase {
    /// Length, as the normalised requests that the cloud can serve in it.
    pub requests: f64,
    /// By VM; `None`: it is not present.
    pub vms: Vec<Option<Use>>,
}

/// Policy and load of a VM.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Use {
    pub policy: Policy,
    pub load: Load,
}

/// When a VM submits requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Load {
    Off,
    /// Keeps this number of requests outstanding.
    Closed(u32),
    /// Poisson arrivals of this rate, in normalised requests per second.
    Poisson(f64),
    /// One request per interval of this many seconds.
    Periodic(f64),
    /// Poisson arrivals of this rate for `on` seconds, none for `off` seconds, and so on.
    Bursty {
        rate: f64,
        on: f64,
        off: f64,
    },
}

impl Cloud {
    /// One device with service times in proportion to cost, and the default cost model.
    pub fn device(capacity: f64, depth: u32, servers: u32) -> Cloud {
        Cloud {
            nodes: 1,
            capacity,
            depth,
            servers,
            service: Service { fixed_ns: None, exponential: false },
            request_bytes: 8192,
            cost: CostModel::default(),
            placement: Placement::RoundRobin,
        }
    }

    pub fn settings(&self) -> GateSettings {
        GateSettings { depth: self.depth, cost: self.cost, queue_max: 4096, ..GateSettings::default() }
    }

    pub fn info(&self) -> DeviceInfo {
        let settings = self.settings();
        DeviceInfo {
            depth: self.depth,
            rotational: false,
            cost: self.cost,
            piece_max: settings.transfer_max,
            request_bytes: Bytes(self.request_bytes),
            device_class: DeviceClass::Disk,
        }
    }

    /// Capacity and bandwidth of one device, as stated.
    pub fn stated_capacity(&self) -> Capacity {
        let nodes = self.nodes as f64;
        let iops = Iops::from_milli((self.capacity / nodes * 1000.0) as u64);
        Capacity { iops: Some(iops), bytes: Some(ByteRate::per_second((self.bandwidth() / nodes) as u64)) }
    }

    /// Bandwidth of all nodes together, in bytes per second.
    pub fn bandwidth(&self) -> f64 {
        self.capacity * self.request_bytes as f64
    }

    /// Bytes that a piece counts against a reservation in bytes.
    pub fn reserved_bytes(&self, bytes: u64, cost: Cost) -> u64 {
        bytes.max((u64::from(cost.raw()) * self.request_bytes) >> Cost::SHIFT)
    }

    /// The pieces into which the gate splits a request.
    pub fn pieces(&self, ask: Ask) -> impl Iterator<Item = Ask> {
        let settings = self.settings();
        let max = match ask.kind {
            Kind::Discard | Kind::WriteZeroes => settings.discard_max,
            _ => settings.transfer_max,
        };
        let max = u32::try_from(max.0).expect("a gate's bounds are 32 bits");
        (0..ask.length.div_ceil(max).max(1))
            .map(move |index| Ask { length: (ask.length - index * max).min(max), ..ask })
    }

    /// The cost of all pieces of a request, in 1/65,536 of a normalised request.
    pub fn raw_cost(&self, ask: Ask) -> u64 {
        self.pieces(ask).map(|piece| u64::from(self.cost.cost(piece.kind, piece.length).raw())).sum()
    }

    /// The same in normalised requests.
    pub fn cost(&self, ask: Ask) -> f64 {
        self.raw_cost(ask) as f64 / 65_536.0
    }

    /// Maximum number of outstanding requests of a VM with an open load. It is smaller on several nodes, because a VM with a
    /// long queue that sends nothing reports nothing.
    pub fn window(&self) -> u32 {
        if self.nodes > 1 { 512 } else { 1024 }
    }

    /// The largest piece of a VM's requests, in normalised requests and in bytes.
    pub fn largest_piece(&self, mix: &[Ask]) -> (f64, f64) {
        let pieces = mix.iter().flat_map(|ask| self.pieces(*ask)).map(|piece| {
            let cost = self.cost.cost(piece.kind, piece.length);
            (cost.as_f64(), self.cost.bytes(piece.kind, piece.length, cost) as f64)
        });
        pieces.fold((0.0, 0.0), |most, piece| (piece.0.max(most.0), piece.1.max(most.1)))
    }

    /// Amounts that the limits of a policy pass back to back after a pause.
    pub fn burst(&self, policy: &Policy) -> Burst {
        let info = self.info();
        match policy.burst {
            None => {
                let depth = f64::from(self.depth);
                let requests = depth * info.piece_cost().as_f64();
                let bytes = depth * info.piece_max.0 as f64;
                let iops = policy.limit.iops.map_or(0.0, |rate| rate.as_f64());
                let rate = policy.limit.bytes.map_or(0.0, |rate| rate.bytes_per_second() as f64);
                Burst { requests: requests.max(iops / 10.0), bytes: bytes.max(rate / 10.0) }
            }
            Some(burst) => {
                let requests = f64::from(burst);
                Burst { requests, bytes: requests * self.cost.reference_size().0 as f64 }
            }
        }
    }
}

/// Burst of limits: normalised requests, and bytes.
#[derive(Debug, Clone, Copy)]
pub struct Burst {
    pub requests: f64,
    pub bytes: f64,
}

impl Plan {
    pub fn seconds(&self, phase: usize) -> f64 {
        self.phases[phase].requests / self.cloud.capacity
    }

    /// Normalised requests of all phases together.
    pub fn requests(&self) -> f64 {
        self.phases.iter().map(|phase| phase.requests).sum()
    }
}

pub fn show_policy(policy: &Policy) -> String {
    let mut text = match policy.weight {
        Some(weight) => format!("weight {weight}"),
        None => "no weight".to_owned(),
    };
    let mut add = |name: &str, iops: Option<Iops>, bytes: Option<ByteRate>| {
        for rate in iops.map(|rate| rate.to_string()).into_iter().chain(bytes.map(|rate| rate.to_string())) {
            text.push_str(&format!(", {name} {rate}"));
        }
    };
    add("reservation", policy.reservation.iops, policy.reservation.bytes);
    add("limit", policy.limit.iops, policy.limit.bytes);
    if let Some(burst) = policy.burst {
        text.push_str(&format!(", burst {burst}"));
    }
    text
}

pub fn show_load(load: &Load) -> String {
    match load {
        Load::Off => "silent".to_owned(),
        Load::Closed(outstanding) => format!("{outstanding} outstanding"),
        Load::Poisson(rate) => format!("poisson {rate:.1}/s"),
        Load::Periodic(every) => format!("one per {every:.6} s"),
        Load::Bursty { rate, on, off } => format!("poisson {rate:.1}/s for {on:.4} s, silent for {off:.4} s"),
    }
}

impl fmt::Display for Cloud {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cloud { nodes, capacity, depth, servers, service, request_bytes, cost, placement } = self;
        let time = match service.fixed_ns {
            Some(nanos) => format!("{nanos} ns each"),
            None => "by cost".to_owned(),
        };
        let shape = if service.exponential { "exponential" } else { "constant" };
        write!(f, "{nodes} nodes, together {capacity:.1}/s, each depth {depth}, {servers} servers, service {time}, ")?;
        write!(f, "{shape}; {request_bytes} bytes a request; {placement:?}")?;
        if *cost != CostModel::default() {
            write!(f, "; {cost:?}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.cloud)?;
        for (number, mix) in self.vms.iter().enumerate() {
            let asks: Vec<String> =
                mix.iter().map(|ask| format!("{} {}", ask.kind.name(), Bytes(ask.length.into()))).collect();
            writeln!(f, "  vm {number} submits: {}", asks.join(", "))?;
        }
        for (number, phase) in self.phases.iter().enumerate() {
            writeln!(f, "  phase {number}, {:.4} s", self.seconds(number))?;
            for (vm, used) in phase.vms.iter().enumerate() {
                match used {
                    Some(Use { policy, load }) => {
                        writeln!(f, "    vm {vm}: {}; {}", show_policy(policy), show_load(load))?
                    }
                    None => writeln!(f, "    vm {vm}: not present")?,
                }
            }
        }
        Ok(())
    }
}
