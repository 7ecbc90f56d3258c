//! The delay device's log: time, owner and cost of each dispatched request.

use std::path::Path;

/// A line of the log.
#[derive(Debug, Clone)]
pub(crate) struct Slot {
    pub(crate) dispatched_ns: u64,
    pub(crate) ended_ns: u64,
    /// Index of the VM, in the order of names.
    pub(crate) owner: u32,
    pub(crate) kind: String,
    pub(crate) length_bytes: u64,
    pub(crate) cost: f64,
    pub(crate) phase: String,
}

pub(crate) const SECOND_NS: u64 = 1_000_000_000;

/// Reads the log of a daemon that has exited.
pub(crate) fn read(path: &Path) -> Vec<Slot> {
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    let header = "dispatch_ns,start_ns,end_ns,server,id,owner,volume,kind,length_bytes,cost,phase";
    assert_eq!(lines.next(), Some(header));
    lines.map(slot).collect()
}

fn slot(line: &str) -> Slot {
    let fields: Vec<&str> = line.split(',').collect();
    assert_eq!(fields.len(), 11, "{line}");
    Slot {
        dispatched_ns: fields[0].parse().unwrap(),
        ended_ns: fields[2].parse().unwrap(),
        owner: fields[5].parse().unwrap(),
        kind: fields[7].to_owned(),
        length_bytes: fields[8].parse().unwrap(),
        cost: fields[9].parse().unwrap(),
        phase: fields[10].to_owned(),
    }
}

/// Returns the lines of one VM.
pub(crate) fn of(slots: &[Slot], owner: u32) -> Vec<Slot> {
    slots.iter().filter(|slot| slot.owner == owner).cloned().collect()
}

/// Returns the period in which all of these VMs had requests.
pub(crate) fn together(slots: &[Slot], owners: u32) -> (u64, u64) {
    let each: Vec<Vec<Slot>> = (0..owners).map(|owner| of(slots, owner)).collect();
    let first = each.iter().map(|slots| slots.first().expect("it was served").dispatched_ns).max();
    let last = each.iter().map(|slots| slots.last().expect("it was served").dispatched_ns).min();
    (first.unwrap(), last.unwrap())
}

/// Returns the cost of the requests dispatched in `[from, to)`.
pub(crate) fn cost_between(slots: &[Slot], from: u64, to: u64) -> f64 {
    let inside = slots.iter().filter(|slot| (from..to).contains(&slot.dispatched_ns));
    inside.map(|slot| slot.cost).sum()
}
