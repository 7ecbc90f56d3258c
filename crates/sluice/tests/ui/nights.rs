//! Ten seeded nights in which something took what a VM was promised: from the overview, links lead to its name and to the remedy in at most
//! three clicks.

use rand::{RngExt as _, SeedableRng as _, seq::SliceRandom as _};
use rand_pcg::Pcg64Mcg;

use super::{Answer, Ui, cli};
use crate::causes::{USUAL, Vm, broken, host_with, load, vm};
use crate::common::disk::Hanging;
use crate::common::{Daemon, MIB, Place, until};

/// A busy machine is a cause, too: it fails an attempt, and a page that names a wrong culprit fails all of them.
const ATTEMPTS: u32 = 4;
/// A rotational disk of 200 requests per second, on which adjacent requests are served together.
const ROTATIONAL: &str = "scheduler = \"mclock\"\nrotational = true\ndepth = 1\ndelay = { time = \"5ms\", parallel = 1 }\n\
                          [device.disk.mclock]\nbatch = 64\n";
/// The usual one, on which reservations may be sold twice.
const SOLD_TWICE: &str =
    "admission = \"off\"\nscheduler = \"mclock\"\ndepth = 4\ndelay = { time = \"10ms\", parallel = 4 }\n";

/// What took the promise, as the person who looks for it has to find it.
struct Culprit {
    /// Names on the page.
    names: Vec<String>,
    /// Words of the remedy.
    remedy: &'static str,
    /// The page on which it is carried out, and what is there.
    place: (String, &'static str),
}

/// A night: what the host has, and who is to blame.
struct Night {
    keys: &'static str,
    capacity: u32,
    /// The victim is the first one.
    vms: [Vm; 2],
    /// Number of VMs that read.
    loaded: usize,
    /// The promise that is broken.
    kind: &'static str,
    cause: &'static str,
    remedy: &'static str,
    blamed: Blamed,
}

/// Who is to blame, by its place on the host.
enum Blamed {
    Victim,
    Neighbour,
    Device,
}

fn text(text: String) -> &'static str {
    text.leak()
}

/// The night of this seed. The numbers differ, the kinds come in turn.
fn night(seed: u64, names: &[&'static str]) -> Night {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let target = text(format!("latency = {{ p99 = \"{}ms\" }}", random.random_range(45..55)));
    let deep = random.random_range(60..70);
    let limit = random.random_range(40..60);
    let [victim, other] = [names[0], names[1]];
    let lower = "Lower the reservations of its neighbours";
    match seed % 7 {
        0 => {
            let vms = [vm(victim, text(format!("weight = 10\n{target}")), 2), vm(other, "weight = 1000", deep)];
            Night::by_neighbour(vms, ("latency", "others_weight", "limit its neighbours"))
        }
        1 => {
            let vms = [vm(victim, target, 8), vm(other, "reservation = \"225 iops\"", deep)];
            Night { capacity: 250, ..Night::by_neighbour(vms, ("latency", "others_reservation", lower)) }
        }
        2 => {
            let vms = [vm(victim, "reservation = \"200 iops\"", 32), vm(other, "reservation = \"400 iops\"", deep)];
            Night { keys: SOLD_TWICE, ..Night::by_neighbour(vms, ("reservation", "others_reservation", lower)) }
        }
        3 => {
            let seldom = Vm { job: "thinktime=50ms", ..vm(victim, "latency = { p99 = \"150ms\" }", 1) };
            let vms = [seldom, Vm { job: "rw=read", ..vm(other, "", deep) }];
            Night { keys: ROTATIONAL, capacity: 150, ..Night::by_neighbour(vms, ("latency", "batch", "batch")) }
        }
        4 => {
            let vms = [vm(victim, text(format!("limit = \"{limit} iops\"\n{target}")), 8), vm(other, "", 1)];
            Night::alone(vms, ("latency", "own_limit", "Raise the limit of"), Blamed::Victim)
        }
        5 => {
            let vms = [vm(victim, target, deep), vm(other, "", 1)];
            Night::alone(vms, ("latency", "own_queue", "outstanding"), Blamed::Victim)
        }
        _ => {
            // More is stated, and sold, than the device gives.
            let vms = [vm(victim, "reservation = \"800 iops\"", 64), vm(other, "", 1)];
            Night { capacity: 1000, ..Night::alone(vms, ("reservation", "device", "capacity"), Blamed::Device) }
        }
    }
}

impl Night {
    /// Both VMs read from a device of 400 requests per second, of which half are stated.
    fn by_neighbour(vms: [Vm; 2], (kind, cause, remedy): (&'static str, &'static str, &'static str)) -> Night {
        Night { keys: USUAL, capacity: 200, vms, loaded: 2, kind, cause, remedy, blamed: Blamed::Neighbour }
    }

    /// Only the victim reads.
    fn alone(vms: [Vm; 2], what: (&'static str, &'static str, &'static str), blamed: Blamed) -> Night {
        Night { loaded: 1, blamed, ..Night::by_neighbour(vms, what) }
    }

    fn culprit(&self) -> Culprit {
        let (name, page, there) = match self.blamed {
            Blamed::Victim => (self.vms[0].name, format!("/vms/{}#change", self.vms[0].name), "name=\"limit\""),
            Blamed::Neighbour => (self.vms[1].name, format!("/vms/{}#change", self.vms[1].name), "name=\"limit\""),
            Blamed::Device => ("disk", "/devices/disk".to_owned(), "Measured"),
        };
        Culprit { names: vec![name.to_owned()], remedy: self.remedy, place: (page, there) }
    }

    /// Lets the night happen, and looks for its culprit. `false`: the machine was too busy for what was constructed.
    fn happens(&self, is_last: bool) -> bool {
        let place = Place::new();
        let _daemon = Daemon::serve(&place, &host_with(self.keys, &place, self.capacity, &self.vms));
        let _load = load(&place, &self.vms[..self.loaded]);
        let victim = self.vms[0].name;
        let event = broken(&place, victim, self.kind);
        if event["cause"] != self.cause && !is_last {
            return false;
        }
        find(&place, victim, &self.culprit());
        true
    }
}

/// The part of a page that a script would replace as one.
fn part<'a>(page: &'a Answer, name: &str) -> &'a str {
    let begin = format!("data-part=\"{name}\"");
    let (_, rest) = page.body.split_once(&begin).unwrap_or_else(|| panic!("{begin} in {}", page.body));
    rest.split_once("data-part=").map_or(rest, |(part, _)| part)
}

/// Follows a link of a page.
fn click(place: &Place, ui: &Ui, from: &str, href: &str) -> Answer {
    assert!(from.contains(&format!("href=\"{href}\"")), "no link {href} in {from}");
    let page = ui.get(place, href.split('#').next().unwrap());
    assert_eq!(page.status, 200, "{href}: {}", page.body);
    page
}

/// From the overview to the VM that suffers, to what is to blame, to the place of the remedy.
fn find(place: &Place, victim: &str, culprit: &Culprit) {
    let ui = Ui::new(place);
    let overview = ui.get(place, "/");
    let suffers = part(&overview, "suffers");
    let victim_page = click(place, &ui, suffers, &format!("/vms/{victim}#why"));
    let why = part(&victim_page, "why");
    for name in culprit.names.iter().map(String::as_str).chain([culprit.remedy]) {
        assert!(why.contains(name), "{name} in {why}");
    }
    let (href, there) = &culprit.place;
    let page = match href.starts_with(&format!("/vms/{victim}#")) {
        true => victim_page,
        false => click(place, &ui, &victim_page.body, href),
    };
    assert!(page.body.contains(there), "{there} in {}", page.body);
}

/// A disk that completes nothing.
fn hung(victim: &'static str) {
    let place = Place::new();
    let disk = Hanging::new(&place, "hung");
    let device =
        format!("[device.disk]\npath = \"{}\"\ndepth = 4\ncapacity = \"200 iops@8KiB\"\n", disk.path().display());
    let volume = place.volume(victim, "v", disk.path(), "size = \"1MiB\"");
    let host = format!("{}{device}[vm.{victim}]\nreservation = \"100 iops\"\n{volume}", place.control_keys());
    let daemon = Daemon::serve(&place, &host);
    let _load = load(&place, &[Vm { job: "rw=randwrite", ..vm(victim, "", 16) }]);
    until("it is served", || daemon.accounts().vm(victim)["completed"]["write"].as_u64() >= Some(200));
    disk.below.freeze();
    broken(&place, victim, "reservation");
    let place_of = ("/devices/disk".to_owned(), "Completes nothing");
    find(&place, victim, &Culprit { names: vec!["disk".to_owned()], remedy: "kernel log", place: place_of });
    disk.below.thaw();
}

/// An administrator has limited the VM.
fn limited(victim: &'static str, other: &'static str) {
    let place = Place::new();
    let vms = [vm(victim, "latency = { p99 = \"50ms\" }", 4), vm(other, "", 1)];
    let _daemon = Daemon::serve(&place, &host_with(USUAL, &place, 200, &vms));
    let _load = load(&place, &vms[..1]);
    cli(&place, &["set", victim, "limit=30 iops", "--reason", "quiet please"]);
    broken(&place, victim, "latency");
    let undo = (format!("/undo?name={victim}%2Flimit"), "What the undo does");
    let names = ["limit".to_owned(), "quiet please".to_owned()];
    find(&place, victim, &Culprit { names: names.to_vec(), remedy: "limit", place: undo });
}

/// Another program has cut the image.
fn cut(victim: &'static str) {
    let place = Place::new();
    let image = place.image("cut.img", 4 * MIB);
    let vm_keys = format!("[vm.{victim}]\nreservation = \"100 iops\"\n");
    let host = place.control_keys() + &place.device("capacity = \"1000 iops@8KiB\"") + &vm_keys;
    let _daemon = Daemon::serve(&place, &(host + &place.volume(victim, "v", &image, "")));
    let job = vm(victim, "", 4);
    let _load = load(&place, &[Vm { job: "size=4m\ncontinue_on_error=all", ..job }]);
    std::fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(MIB).unwrap();
    let ui = Ui::new(&place);
    let is_told = || part(&ui.get(&place, "/"), "trouble").contains("FAILING");
    until("the overview tells of the image", is_told);
    let overview = ui.get(&place, "/");
    let page = click(&place, &ui, part(&overview, "trouble"), &format!("/vms/{victim}"));
    page.has(200, &["cut.img", "restore the data from a"]);
}

#[test]
fn the_culprit_of_ten_nights_is_found_in_three_clicks() {
    let nights = |seeds: core::ops::Range<u64>| {
        std::thread::scope(|scope| {
            for seed in seeds {
                scope.spawn(move || {
                    let mut names = ["db1", "web", "batch", "mail", "cache", "ci", "backup", "shop", "wiki", "logs"];
                    names.shuffle(&mut Pcg64Mcg::seed_from_u64(seed));
                    match seed {
                        7 => hung(names[0]),
                        8 => limited(names[0], names[1]),
                        9 => cut(names[0]),
                        _ => {
                            let night = night(seed, &names);
                            (1..=ATTEMPTS).any(|attempt| night.happens(attempt == ATTEMPTS));
                        }
                    }
                });
            }
        });
    };
    // All at once would make the machine the culprit.
    (0..10).step_by(3).for_each(|first| nights(first..(first + 3).min(10)));
}
