//! Appenders on a disk that may lose its server at any time, and the required content of the disk at any time.
//!
//! Each appender owns a range of the disk. It writes records of random length one after another, several
//! concurrently, and flushes now and then. At the end of its range it starts again from the beginning, so newer
//! records replace older ones. Every sector identifies its record, and its content shows if a part belongs to another
//! record. A sector has at most one write in flight. So it contains the last acknowledged write or, while a write is
//! in flight, possibly that one.

use std::collections::HashMap;

use sluice_client::vhost::{Client, Completion, Queue, Request};

pub(crate) const SECTOR: usize = 512;
/// Sectors of each appender's range.
const RANGE: u64 = 128;
/// Maximum number of sectors of a record.
const RECORD_MAX: u64 = 16;
/// Number of records that an appender writes concurrently.
const OUTSTANDING: usize = 4;

/// The required content of the disk.
pub(crate) struct Journal {
    appenders: Vec<Appender>,
    sectors: Vec<Sector>,
    /// The request in each slot of each queue.
    in_flight: HashMap<(u16, u16), Pending>,
    queues: u16,
    /// Sectors of a block.
    block: u64,
    random: u64,
    sequence: u64,
}

#[derive(Default)]
struct Appender {
    tail: u64,
    outstanding: usize,
}

/// Records are numbered from 1; 0 is the empty disk.
#[derive(Debug, Clone, Copy, Default)]
struct Sector {
    acknowledged: u64,
    issued: Option<u64>,
}

enum Pending {
    Record { appender: usize, first: u64, sectors: u64, sequence: u64 },
    Flush { appender: usize },
}

impl Journal {
    /// Creates `appenders` appenders on a client, which use all of its queues.
    pub(crate) fn new(appenders: usize, queues: u16, block_size: u32, seed: u64) -> Journal {
        Journal {
            appenders: (0..appenders).map(|_| Appender::default()).collect(),
            sectors: vec![Sector::default(); appenders * RANGE as usize],
            in_flight: HashMap::new(),
            queues,
            block: u64::from(block_size) / SECTOR as u64,
            random: seed | 1,
            sequence: 0,
        }
    }

    /// Returns the number of bytes of the disk that are used.
    pub(crate) fn len_bytes(appenders: usize) -> u64 {
        appenders as u64 * RANGE * SECTOR as u64
    }

    /// Returns a number less than `bound`.
    pub(crate) fn random(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % bound
    }

    /// Returns the number of requests in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Lets every appender submit as much as it may.
    pub(crate) fn fill(&mut self, client: &mut Client) {
        for appender in 0..self.appenders.len() {
            let index = (appender % usize::from(self.queues)) as u16;
            while self.appenders[appender].outstanding < OUTSTANDING
                && self.append(appender, index, client.queue(index))
            {}
        }
        (0..self.queues).for_each(|index| assert!(client.queue(index).publish().is_ok()));
    }

    /// Submits one more record or flush. Returns `false` if there is no free slot.
    fn append(&mut self, appender: usize, index: u16, queue: &mut Queue) -> bool {
        let Some(slot) = (0..queue.slots()).find(|slot| !self.in_flight.contains_key(&(index, *slot))) else {
            return false;
        };
        if self.random(8) == 0 {
            queue.submit(slot, Request::Flush).unwrap();
            self.in_flight.insert((index, slot), Pending::Flush { appender });
            self.appenders[appender].outstanding += 1;
            return true;
        }
        let wanted = (1 + self.random(RECORD_MAX / self.block)) * self.block;
        let tail = self.appenders[appender].tail;
        let sectors = wanted.min(RANGE - tail);
        let first = appender as u64 * RANGE + tail;
        let range = first as usize..(first + sectors) as usize;
        if self.sectors[range.clone()].iter().any(|sector| sector.issued.is_some()) {
            return false;
        }
        self.sequence += 1;
        let sequence = self.sequence;
        let record: Vec<u8> = (first..first + sectors).flat_map(|sector| content(sector, sequence)).collect();
        queue.write_data(slot, &record);
        queue.submit(slot, Request::Write { offset: first * SECTOR as u64, len: record.len() as u32 }).unwrap();
        self.sectors[range].iter_mut().for_each(|sector| sector.issued = Some(sequence));
        self.in_flight.insert((index, slot), Pending::Record { appender, first, sectors, sequence });
        let state = &mut self.appenders[appender];
        (state.tail, state.outstanding) = ((tail + sectors) % RANGE, state.outstanding + 1);
        true
    }

    /// Records the completions of a queue.
    pub(crate) fn acknowledge(&mut self, index: u16, answers: &[Completion]) {
        for answer in answers {
            assert_eq!(answer.status, 0, "a request failed");
            let appender = match self.in_flight.remove(&(index, answer.slot)).expect("it was asked for") {
                Pending::Flush { appender } => appender,
                Pending::Record { appender, first, sectors, sequence } => {
                    for sector in &mut self.sectors[first as usize..(first + sectors) as usize] {
                        assert_eq!(sector.issued.take(), Some(sequence));
                        sector.acknowledged = sequence;
                    }
                    appender
                }
            };
            self.appenders[appender].outstanding -= 1;
        }
    }

    /// Works until about this many requests have been answered, and leaves many in flight.
    pub(crate) fn work(&mut self, client: &mut Client, answers: u64) {
        let mut answered = 0;
        self.fill(client);
        while answered < answers {
            for index in 0..self.queues {
                let answers = client.wait(index, 1).unwrap();
                self.acknowledge(index, &answers);
                answered += answers.len() as u64;
            }
            self.fill(client);
        }
    }

    /// Takes the answers that have arrived, after the daemon was killed: they are no promise of the next one.
    pub(crate) fn reap(&mut self, client: &mut Client) {
        for index in 0..self.queues {
            let mut answers = Vec::new();
            client.queue(index).reap(&mut answers).unwrap();
            self.acknowledge(index, &answers);
        }
    }

    /// Waits for all requests in flight.
    pub(crate) fn finish(&mut self, client: &mut Client) {
        for index in 0..self.queues {
            while client.queue(index).in_flight() > 0 {
                let answers = client.wait(index, 1).unwrap();
                self.acknowledge(index, &answers);
            }
        }
    }

    /// Drops the requests in flight, because they will not complete. The content of the disk decides which of them
    /// were written.
    pub(crate) fn forget(&mut self, disk: &[u8]) {
        self.check(disk);
        for (sector, bytes) in self.sectors.iter_mut().zip(disk.chunks(SECTOR)) {
            let acknowledged = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            *sector = Sector { acknowledged, issued: None };
        }
        self.in_flight.clear();
        self.appenders.iter_mut().for_each(|appender| appender.outstanding = 0);
    }

    /// Checks that no acknowledged write is lost, no sector is too old, and none is torn.
    #[track_caller]
    pub(crate) fn check(&self, disk: &[u8]) {
        for (number, (sector, bytes)) in self.sectors.iter().zip(disk.chunks(SECTOR)).enumerate() {
            let found = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            let may_be = found == sector.acknowledged || Some(found) == sector.issued;
            assert!(may_be, "sector {number} holds record {found}, not one of {sector:?}");
            assert!(bytes == content(number as u64, found), "sector {number} of record {found} is torn");
        }
    }
}

/// Returns the content of a sector of a record.
fn content(sector: u64, sequence: u64) -> [u8; SECTOR] {
    let mut bytes = [0; SECTOR];
    if sequence > 0 {
        let noise = super::noise(sequence << 20 | sector, SECTOR - 8);
        bytes[..8].copy_from_slice(&sequence.to_le_bytes());
        bytes[8..].copy_from_slice(&noise);
    }
    bytes
}
