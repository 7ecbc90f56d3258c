//! What a trial measures.

/// Kind of a measured value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// Requests per second.
    Iops,
    /// Mean latency in milliseconds.
    Latency,
    /// Time in seconds until the VM's work is done.
    Seconds,
    /// Requests per second in multiples of those of the last VM.
    Ratio,
}

/// A value that is compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Value {
    /// Index of the interval.
    pub part: usize,
    /// Index of the VM; `None`: all together.
    pub vm: Option<usize>,
    pub quantity: Quantity,
    /// Value of the paper, if it states one.
    pub paper: Option<f64>,
}

/// Results of a VM in an interval, in the paper's units.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Seen {
    pub iops: f64,
    pub latency_ms: f64,
    /// Time until its work was done; not a number if it was not, or has no end. The same in all intervals.
    pub seconds: f64,
}

impl Value {
    /// Returns it from results by interval and VM. The latency of all VMs is the mean over their requests.
    #[must_use]
    pub fn of(&self, seen: &[Vec<Seen>]) -> f64 {
        let part = &seen[self.part];
        let vms = self.vm.map_or(&part[..], |vm| &part[vm..=vm]);
        let iops: f64 = vms.iter().map(|vm| vm.iops).sum();
        match self.quantity {
            Quantity::Iops => iops,
            // Of one VM it is its own, also without requests.
            Quantity::Latency if vms.len() == 1 => vms[0].latency_ms,
            Quantity::Latency => vms.iter().map(|vm| vm.iops * vm.latency_ms).sum::<f64>() / iops,
            Quantity::Seconds => vms.iter().map(|vm| vm.seconds).fold(f64::NAN, f64::max),
            Quantity::Ratio => iops / part.last().map_or(f64::NAN, |last| last.iops),
        }
    }
}
