//! The past of VMs, volumes and NICs on disk: minutes, and quarters of an hour that keep their busiest minute.
//!
//! Each minute is written as a row of its own ([`Table::Tail`]), so that a kill costs the minute that is not over. When an hour is over, its
//! rows are packed: one of each object with its minutes, and one with its quarters of an hour. Both are kept for as long as the host file
//! says, and quarters that are older than the minutes are what is left of them.
//!
//! The key of a row is its time (minutes or hours since 1970), and in the lower 24 bits the number of its object. So rows are appended,
//! pages are full, and a query looks up one row per hour and object without another index. Example: 1,000 VMs with a volume and a NIC
//! that are always busy have 2,000 objects. Two rows of minutes fit into a page of 4 KiB, so 7 days take 690 MB; quarters of 35 days take
//! another 490 MB.
//!
//! The oldest rows have the lowest keys. They are deleted in steps, and whole pages become free, which the next rows use: the file does
//! not grow beyond what is kept at the same time. It does not shrink either when less is to be kept.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Statement, params};
use sluice_api::list::{self, Step};
use sluice_observe::interval::{Interval, Minute};

use self::pack::{Hour, Kept};
use super::database;

mod pack;

/// Rows that are deleted at once. There are as many new ones in an hour as objects, so deletion keeps up with 30,000 of them.
const DELETED_AT_ONCE: i64 = 500;
/// Bits of a key for the number of the object.
const OBJECT_BITS: u32 = 24;
/// Maximum number of objects in the database. The past of a further one is not kept.
const OBJECTS_MAX: i64 = (1 << OBJECT_BITS) - 1;
/// Free space of the file system that the past leaves to the state and to events, in bytes.
const RESERVE: u64 = 64 << 20;
/// Maximum number of rows of an object that are looked for: hours of a year and more.
const TIMES_MAX: u64 = 10_000;
const HOUR: u64 = 3600;

pub(super) const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS history_object (
        id INTEGER PRIMARY KEY,
        device TEXT NOT NULL,
        vm TEXT NOT NULL,
        volume TEXT NOT NULL,
        hour INTEGER NOT NULL
    );
    CREATE UNIQUE INDEX IF NOT EXISTS history_object_by_name ON history_object (vm, volume, device);
    CREATE TABLE IF NOT EXISTS history_tail (id INTEGER PRIMARY KEY, intervals BLOB NOT NULL);
    CREATE TABLE IF NOT EXISTS history_minutes (id INTEGER PRIMARY KEY, intervals BLOB NOT NULL);
    CREATE TABLE IF NOT EXISTS history_quarters (id INTEGER PRIMARY KEY, intervals BLOB NOT NULL);
";

/// How long the past is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    pub minutes: Duration,
    pub quarter_hours: Duration,
}

impl Keep {
    /// How long a database in memory keeps the past. A day takes at most 45 KB for each VM and volume.
    pub(super) const IN_MEMORY: Keep =
        Keep { minutes: Duration::from_hours(24), quarter_hours: Duration::from_hours(24) };
}

/// A table of intervals.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Table {
    /// Minutes of hours that are not packed.
    Tail,
    Minutes,
    Quarters,
}

impl Table {
    fn name(self) -> &'static str {
        match self {
            Table::Tail => "history_tail",
            Table::Minutes => "history_minutes",
            Table::Quarters => "history_quarters",
        }
    }
}

fn key(time: u64, object: i64) -> i64 {
    time.min(1 << 38).cast_signed() << OBJECT_BITS | object
}

/// The time and the object of a key.
fn parts(key: i64) -> (u64, i64) {
    ((key >> OBJECT_BITS).cast_unsigned(), key & OBJECTS_MAX)
}

/// Whether so little is free on the file system of a folder that nothing more is to be kept of the past.
pub(super) fn lacks_space(folder: &Path) -> bool {
    !database::has_free(folder, RESERVE)
}

/// Adds minutes that are over, packs hours that are over, and deletes some of what is older than is kept.
pub(super) fn add(connection: &Connection, minutes: &[Minute], keep: &Keep) -> rusqlite::Result<()> {
    let Some(now) = minutes.iter().map(|minute| minute.minute).max() else { return Ok(()) };
    let mut object = connection.prepare("SELECT id FROM history_object WHERE vm = ? AND volume = ? AND device = ?")?;
    let mut tail = Rows::new(connection, Table::Tail)?;
    for minute in minutes {
        let volume = minute.volume.as_deref().unwrap_or("");
        let names = [&*minute.vm, volume, &*minute.device];
        let known = object.query_row(names, |row| row.get(0)).optional()?;
        let Some(object) =
            known.map_or_else(|| new_object(connection, names, minute.minute / 60), |id| Ok(Some(id)))?
        else {
            continue;
        };
        let key = key(minute.minute, object);
        let mut interval = minute.interval.clone();
        // A minute in which the daemon was started again, or in which the clock was set.
        tail.get(key)?.and_then(|bytes| pack::unpacked(&bytes)).iter().for_each(|before| interval.add(before));
        tail.put(key, &pack::packed(&interval))?;
    }
    pack_before(connection, now / 60)?;
    delete(connection, now / 60, keep)
}

/// Adds an object; `None` if there are too many.
fn new_object(connection: &Connection, [vm, volume, device]: [&str; 3], hour: u64) -> rusqlite::Result<Option<i64>> {
    connection.execute(
        "INSERT INTO history_object (id, device, vm, volume, hour)
         SELECT next, ?2, ?3, ?4, ?5 FROM (SELECT ifnull(max(id), 0) + 1 AS next FROM history_object) WHERE next <= ?1",
        params![OBJECTS_MAX, device, vm, volume, hour.cast_signed()],
    )?;
    Ok((connection.changes() > 0).then(|| connection.last_insert_rowid()))
}

/// Statements that read and write rows of a table.
struct Rows<'c> {
    get: Statement<'c>,
    put: Statement<'c>,
}

impl Rows<'_> {
    fn new(connection: &Connection, table: Table) -> rusqlite::Result<Rows<'_>> {
        let name = table.name();
        Ok(Rows {
            get: connection.prepare(&format!("SELECT intervals FROM {name} WHERE id = ?"))?,
            put: connection.prepare(&format!("INSERT OR REPLACE INTO {name} VALUES (?, ?)"))?,
        })
    }

    fn get(&mut self, key: i64) -> rusqlite::Result<Option<Vec<u8>>> {
        self.get.query_row([key], |row| row.get(0)).optional()
    }

    fn put(&mut self, key: i64, intervals: &[u8]) -> rusqlite::Result<()> {
        self.put.execute(params![key, intervals]).map(drop)
    }

    fn hour(&mut self, key: i64, has_busiest: bool) -> rusqlite::Result<Hour> {
        Ok(self.get(key)?.map_or_else(Hour::new, |bytes| pack::unpacked_hour(&bytes, has_busiest)))
    }
}

/// Minutes of the tail between two keys, by hour and object.
fn tail(connection: &Connection, from: i64, to: i64) -> rusqlite::Result<BTreeMap<(u64, i64), Hour>> {
    let mut statement =
        connection.prepare("SELECT id, intervals FROM history_tail WHERE id >= ? AND id < ? ORDER BY id")?;
    let mut rows = statement.query([from, to])?;
    let mut hours: BTreeMap<_, Hour> = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let (minute, object) = parts(row.get(0)?);
        let Some(interval) = pack::unpacked(row.get_ref(1)?.as_blob()?) else { continue };
        hours.entry((minute / 60, object)).or_default().insert((minute % 60) as u8, Kept { interval, busiest: None });
    }
    Ok(hours)
}

/// Packs the minutes of all hours before this one.
fn pack_before(connection: &Connection, hour: u64) -> rusqlite::Result<()> {
    let end = key(hour * 60, 0);
    let hours = tail(connection, i64::MIN, end)?;
    if hours.is_empty() {
        return Ok(());
    }
    let mut minute_rows = Rows::new(connection, Table::Minutes)?;
    let mut quarter_rows = Rows::new(connection, Table::Quarters)?;
    let mut seen = connection.prepare("UPDATE history_object SET hour = max(hour, ?) WHERE id = ?")?;
    for ((hour, object), new) in hours {
        let key = key(hour, object);
        // There are some already if the clock was set back.
        let mut minutes = minute_rows.hour(key, false)?;
        minutes.extend(new);
        minute_rows.put(key, &pack::packed_hour(&minutes))?;
        quarter_rows.put(key, &pack::packed_hour(&quarters(&minutes)))?;
        seen.execute([hour.cast_signed(), object])?;
    }
    connection.execute("DELETE FROM history_tail WHERE id < ?", [end]).map(drop)
}

/// The quarters of an hour, each with its busiest minute.
fn quarters(minutes: &Hour) -> Hour {
    let mut quarters = Hour::new();
    for (minute, Kept { interval, .. }) in minutes {
        let quarter: &mut Kept = quarters.entry(minute / 15).or_default();
        quarter.interval.add(interval);
        if quarter.busiest.as_ref().is_none_or(|(_, busiest)| interval.load() > busiest.load()) {
            quarter.busiest = Some((minute % 15, interval.clone()));
        }
    }
    quarters
}

/// Deletes some of what is older than is kept, and of what a clock that was wrong has put into the future.
fn delete(connection: &Connection, hour: u64, keep: &Keep) -> rusqlite::Result<()> {
    let oldest = |kept: Duration| hour.saturating_sub(kept.as_secs().div_ceil(HOUR));
    for (table, kept) in [(Table::Minutes, keep.minutes), (Table::Quarters, keep.quarter_hours)] {
        let name = table.name();
        connection.execute(
            &format!(
                "DELETE FROM {name} WHERE id IN (SELECT id FROM {name} WHERE id < ?1 LIMIT ?3)
                 OR id IN (SELECT id FROM {name} WHERE id > ?2 LIMIT ?3)"
            ),
            params![key(oldest(kept), 0), key(hour + 24, 0), DELETED_AT_ONCE],
        )?;
    }
    // An object without a row is forgotten, some time after the last one of its rows was deleted.
    let longest = keep.minutes.max(keep.quarter_hours) + Duration::from_hours(48);
    connection.execute("DELETE FROM history_object WHERE hour < ?", [oldest(longest).cast_signed()]).map(drop)
}

/// Moves the minutes since `since`, which are not packed yet, by `seconds`, after the clock was set.
pub(super) fn correct(connection: &Connection, since: u64, seconds: i64) -> rusqlite::Result<()> {
    let by = (seconds / 60) << OBJECT_BITS;
    // In two steps: a row must not meet another one that has not been moved yet.
    connection.execute("UPDATE history_tail SET id = -(id + ?1) WHERE id >= ?2", [by, key(since / 60, 0)])?;
    connection.execute("UPDATE OR REPLACE history_tail SET id = -id WHERE id < 0", []).map(drop)
}

/// Copies the past of one database to another, which may have one.
pub(super) fn copy(from: &Connection, to: &Connection) -> rusqlite::Result<()> {
    let mut objects = from.prepare("SELECT id, vm, volume, device, hour FROM history_object")?;
    let mut rows = objects.query([])?;
    let mut numbers: BTreeMap<i64, i64> = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let names: [String; 3] = [row.get(1)?, row.get(2)?, row.get(3)?];
        let names = names.each_ref().map(String::as_str);
        let known = "SELECT id FROM history_object WHERE vm = ? AND volume = ? AND device = ?";
        let known: Option<i64> = to.query_row(known, names, |row| row.get(0)).optional()?;
        let hour = row.get::<_, i64>(4)?.cast_unsigned();
        let number = known.map_or_else(|| new_object(to, names, hour), |id| Ok(Some(id)))?;
        if let Some(number) = number {
            numbers.insert(row.get(0)?, number);
        }
    }
    for table in [Table::Tail, Table::Minutes, Table::Quarters] {
        let name = table.name();
        let mut all = from.prepare(&format!("SELECT id, intervals FROM {name}"))?;
        let mut add = to.prepare(&format!("INSERT OR IGNORE INTO {name} VALUES (?, ?)"))?;
        let mut rows = all.query([])?;
        while let Some(row) = rows.next()? {
            let (time, object) = parts(row.get(0)?);
            if let Some(object) = numbers.get(&object) {
                add.execute(params![key(time, *object), row.get::<_, Vec<u8>>(1)?])?;
            }
        }
    }
    Ok(())
}

/// A question about the past of a VM, volume or NIC.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) vm: &'a str,
    pub(super) volume: Option<&'a str>,
    pub(super) step: Step,
    /// Seconds since 1970.
    pub(super) since: u64,
    pub(super) until: u64,
}

/// Returns intervals by device, oldest first.
pub(super) fn find(connection: &Connection, asked: &Asked<'_>) -> rusqlite::Result<BTreeMap<String, Vec<list::Point>>> {
    let (table, length) = match asked.step {
        Step::QuarterHour => (Table::Quarters, 900),
        _ => (Table::Minutes, 60),
    };
    let mut devices: BTreeMap<String, BTreeMap<u64, list::Point>> = BTreeMap::new();
    for (object, device, volume) in objects(connection, asked)? {
        let points = devices.entry(device).or_default();
        // A VM with one volume has no row of its own: the rows of the volume answer questions about the VM.
        let is_asked = |kept: &Kept| asked.volume.is_some() || volume.is_empty() || kept.interval.is_whole_vm;
        for (hour, intervals) in hours(connection, object, table, asked)? {
            for (number, kept) in intervals.into_iter().filter(|(_, kept)| is_asked(kept)) {
                let time = hour * HOUR + u64::from(number) * length;
                if (asked.since..=asked.until).contains(&time) {
                    points.insert(time, point(&kept, time));
                }
            }
        }
    }
    devices.retain(|_, points| !points.is_empty());
    Ok(devices.into_iter().map(|(device, points)| (device, points.into_values().collect())).collect())
}

/// Adds intervals of a step to those that are known already.
pub(super) fn join(known: &mut list::History, found: BTreeMap<String, Vec<list::Point>>, step: Step) {
    for (device, points) in found {
        let index = known.history.iter().position(|of| of.device == device).unwrap_or_else(|| {
            known.history.push(list::DeviceHistory { device, ..list::DeviceHistory::default() });
            known.history.len() - 1
        });
        let of = &mut known.history[index];
        match step {
            Step::QuarterHour => of.quarter_hours = points,
            _ => of.minutes = points,
        }
    }
}

/// When the last minute began, in seconds since 1970.
pub(super) fn last(connection: &Connection) -> Option<u64> {
    let last = |table: Table, seconds| {
        let last = connection.query_row(&format!("SELECT max(id) FROM {}", table.name()), [], |row| row.get(0));
        last.ok().flatten().map(|last| parts(last).0 * seconds)
    };
    last(Table::Tail, 60).max(last(Table::Minutes, HOUR))
}

/// Whether anything is known of a VM or volume.
pub(super) fn is_known(connection: &Connection, asked: &Asked<'_>) -> bool {
    objects(connection, asked).is_ok_and(|objects| !objects.is_empty())
}

/// Number, device and volume of what is asked.
fn objects(connection: &Connection, asked: &Asked<'_>) -> rusqlite::Result<Vec<(i64, String, String)>> {
    let mut statement = connection.prepare(
        "SELECT id, device, volume FROM history_object WHERE vm = ?1 AND (?2 IS NULL OR volume = ?2) ORDER BY id",
    )?;
    let rows =
        statement.query_map(params![asked.vm, asked.volume], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    rows.collect()
}

/// The hours of an object, oldest first.
fn hours(
    connection: &Connection,
    object: i64,
    table: Table,
    asked: &Asked<'_>,
) -> rusqlite::Result<BTreeMap<u64, Hour>> {
    let mut found = BTreeMap::new();
    let mut rows = Rows::new(connection, table)?;
    for hour in times(connection, table, (asked.since / HOUR, asked.until / HOUR))? {
        found.insert(hour, rows.hour(key(hour, object), table == Table::Quarters)?);
    }
    // The hour that is not over.
    let (mut tail, mut rest) = (Rows::new(connection, Table::Tail)?, BTreeMap::<u64, Hour>::new());
    for minute in times(connection, Table::Tail, (asked.since / HOUR * 60, asked.until / 60))? {
        let Some(interval) = tail.get(key(minute, object))?.and_then(|bytes| pack::unpacked(&bytes)) else { continue };
        rest.entry(minute / 60).or_default().insert((minute % 60) as u8, Kept { interval, busiest: None });
    }
    for (hour, minutes) in rest {
        let minutes = if table == Table::Quarters { quarters(&minutes) } else { minutes };
        found.entry(hour).or_default().extend(minutes);
    }
    Ok(found)
}

/// The times of a table from `first` to `last` that may have rows.
fn times(connection: &Connection, table: Table, (first, last): (u64, u64)) -> rusqlite::Result<Range<u64>> {
    let end = |which| {
        connection
            .query_row(&format!("SELECT {which}(id) FROM {}", table.name()), [], |row| row.get::<_, Option<i64>>(0))
    };
    let Some((oldest, newest)) = end("min")?.zip(end("max")?) else { return Ok(0..0) };
    let last = last.min(parts(newest).0);
    // Clocks that were wrong have left rows far apart.
    Ok(first.max(parts(oldest).0).max(last.saturating_sub(TIMES_MAX))..last.saturating_add(1))
}

fn point(Kept { interval, busiest }: &Kept, time: u64) -> list::Point {
    let busiest = busiest.as_ref().map(|(minute, busiest): &(u8, Interval)| {
        Box::new(list::Point { latency_counts: Vec::new(), ..busiest.at(time + 60 * u64::from(*minute)) })
    });
    list::Point { busiest, ..interval.at(time) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 60;
    /// A minute at the beginning of a day, since 1970.
    const BEGIN: u64 = 20_000 * DAY;
    const KEEP: Keep = Keep { minutes: Duration::from_hours(7 * 24), quarter_hours: Duration::from_hours(35 * 24) };

    fn database() -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(SCHEMA).unwrap();
        connection
    }

    fn minute(minute: u64, volume: Option<&str>, requests: u64) -> Minute {
        let interval = Interval {
            nanos: 60_000_000_000,
            requests,
            normalised_64ths: 64 * requests,
            is_whole_vm: volume != Some("data"),
            ..Interval::default()
        };
        let (device, vm, volume) = ("disk".to_owned(), "db".to_owned(), volume.map(str::to_owned));
        Minute { device, vm, volume, minute, interval }
    }

    fn asked(volume: Option<&'static str>, step: Step) -> Asked<'static> {
        Asked { vm: "db", volume, step, since: 0, until: u64::MAX }
    }

    fn times(connection: &Connection, asked: &Asked<'_>) -> Vec<(u64, f64)> {
        let found = find(connection, asked).unwrap().remove("disk").unwrap_or_default();
        found.iter().map(|point| (point.time / 60 - BEGIN, point.iops)).collect()
    }

    #[test]
    fn minutes_last_a_week_and_quarters_with_their_busiest_minute_five() {
        let connection = database();
        for time in BEGIN..BEGIN + 40 * DAY {
            let requests = if time % 15 == 7 { 6000 } else { 600 };
            add(&connection, &[minute(time, Some("root"), requests)], &KEEP).unwrap();
        }
        let minutes = times(&connection, &asked(None, Step::Minute));
        assert_eq!(minutes.len() as u64, 7 * DAY + 60, "and the hour in which the week began");
        assert_eq!(minutes.last(), Some(&(40 * DAY - 1, 10.0)));
        let quarters = find(&connection, &asked(Some("root"), Step::QuarterHour)).unwrap().remove("disk").unwrap();
        assert_eq!(quarters.len() as u64, 35 * 96 + 4);
        for quarter in &quarters {
            let busiest = quarter.busiest.as_ref().unwrap();
            assert_eq!((quarter.iops, busiest.iops, busiest.time), (16.0, 100.0, quarter.time + 7 * 60));
        }
        let rows =
            |table| connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get::<_, i64>(0));
        let counts =
            ["history_object", "history_tail", "history_minutes", "history_quarters"].map(|name| rows(name).unwrap());
        assert_eq!(counts, [1, 60, 7 * 24, 35 * 24]);
        let week =
            Asked { since: (BEGIN + 38 * DAY) * 60, until: (BEGIN + 39 * DAY) * 60, ..asked(None, Step::Minute) };
        assert_eq!(times(&connection, &week).len() as u64, DAY + 1);
    }

    #[test]
    fn the_past_of_a_vm_is_that_of_its_only_volume_until_it_gets_a_second_one() {
        let connection = database();
        add(&connection, &[minute(BEGIN, Some("root"), 60)], &KEEP).unwrap();
        let both = [minute(BEGIN + 1, None, 180), minute(BEGIN + 1, Some("data"), 120)];
        add(&connection, &both, &KEEP).unwrap();
        assert_eq!(times(&connection, &asked(None, Step::Minute)), [(0, 1.0), (1, 3.0)]);
        assert_eq!(times(&connection, &asked(Some("data"), Step::Minute)), [(1, 2.0)]);
        assert_eq!(times(&connection, &asked(Some("root"), Step::Minute)), [(0, 1.0)]);
        assert!(is_known(&connection, &asked(None, Step::Minute)));
        assert!(!is_known(&connection, &asked(Some("other"), Step::Minute)));
    }

    #[test]
    fn a_minute_in_which_the_daemon_was_started_again_has_the_requests_of_both() {
        let connection = database();
        for _ in 0..2 {
            add(&connection, &[minute(BEGIN, Some("root"), 600)], &KEEP).unwrap();
        }
        let found = find(&connection, &asked(None, Step::Minute)).unwrap().remove("disk").unwrap();
        assert_eq!(found.iter().map(|point| point.iops).collect::<Vec<_>>(), [10.0], "1,200 in 120 s");
    }

    #[test]
    fn a_clock_that_is_set_moves_the_minutes_of_this_run_that_are_not_packed() {
        for hours in [1_i64, -1, 24 * 5] {
            let connection = database();
            (0..30).for_each(|time| add(&connection, &[minute(BEGIN + 120 + time, Some("root"), 60)], &KEEP).unwrap());
            correct(&connection, (BEGIN + 130) * 60, hours * 3600).unwrap();
            let found = find(&connection, &asked(None, Step::Minute)).unwrap().remove("disk").unwrap();
            let moved = (BEGIN + 130).saturating_add_signed(hours * 60) * 60;
            let first = found.iter().map(|point| point.time).find(|time| *time >= moved).unwrap();
            assert_eq!((found.len(), first), (30, moved));
            let last = (BEGIN + 150).saturating_add_signed(hours * 60);
            add(&connection, &[minute(last, Some("root"), 60)], &KEEP).unwrap();
            assert!(find(&connection, &asked(None, Step::Minute)).unwrap()["disk"].len() >= 21);
        }
    }

    #[test]
    fn rows_that_a_wrong_clock_put_into_the_future_are_deleted() {
        let connection = database();
        let future = [0, 61].map(|later| minute(BEGIN + 1000 * DAY + later, Some("root"), 60));
        future.iter().for_each(|minute| add(&connection, std::slice::from_ref(minute), &KEEP).unwrap());
        (0..62).for_each(|time| add(&connection, &[minute(BEGIN + time, Some("root"), 60)], &KEEP).unwrap());
        let rows = connection.query_row("SELECT count(*) FROM history_minutes", [], |row| row.get::<_, i64>(0));
        assert_eq!(rows, Ok(1));
    }

    #[test]
    fn the_past_in_memory_is_added_to_that_of_the_file() {
        let (from, to) = (database(), database());
        let of = |connection: &Connection, time, volume, requests| {
            add(connection, &[minute(time, Some(volume), requests)], &KEEP).unwrap();
        };
        of(&to, BEGIN, "data", 60);
        (BEGIN + 1..BEGIN + 130).for_each(|time| of(&from, time, "root", 120));
        copy(&from, &to).unwrap();
        assert_eq!(times(&to, &asked(Some("data"), Step::Minute)), [(0, 1.0)]);
        let root = times(&to, &asked(Some("root"), Step::Minute));
        assert_eq!((root.len(), root[0], root[128]), (129, (1, 2.0), (129, 2.0)));
    }
}
