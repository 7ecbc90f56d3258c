//! Events of what users do: each says who, what was in force before and after, for how long, why, and how to undo it.
//!
//! Example: `alice` may run sudo. `sudo sluice set batch limit=300 --for 10m --reason "ticket 4711"` is the event "batch was changed:
//! limit=500 iops -> limit=300 iops, by alice (role admin), until ..., reason: ticket 4711; undo: sluice reset batch/limit".

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sluice_api::change::{Effect, Holds, Settings};
use sluice_api::event::{Change, Event, EventKind, Phase};
use sluice_api::request::Request;
use sluice_api::{amount, shell};
use sluice_config::changes::Object;

use super::describe::{describe, value_of};
use super::roles::Roles;
use super::socket::Peer;
use super::undo::assignment;
use crate::server::Server;
use crate::state::overrides::{Compared, Gone, Override, Overrides};
use crate::state::time::Time;

/// Maximum number of objects of one command or reload with an event of their own.
pub(super) const OBJECTS_MAX: usize = 1000;
/// Maximum length of a command, and of what was in force, in characters.
const WORDS_MAX: usize = 1000;
/// Minimum time between two events of refusals of one user.
const REFUSAL_EVERY: Duration = Duration::from_secs(60);
/// Maximum number of users with such an event in this time: a user may have many numbers.
const REFUSED_MAX: usize = 64;

/// The user who makes a change, and the command.
#[derive(Debug, Clone, Default)]
pub struct Author(Change);

impl Author {
    /// The client that makes a request.
    pub fn of(request: &Request, peer: &Peer, roles: &Roles) -> Author {
        let role = roles.name_of(peer).map(str::to_owned);
        let (command, reason) = (command(request), request.reason().map(str::to_owned));
        let Peer { uid, pid, login, .. } = peer;
        Author(Change { uid: Some(*uid), login_uid: *login, pid: *pid, role, command, reason, ..Change::default() })
    }

    /// A signal, whose sender is not known.
    pub fn signal(name: &str) -> Author {
        Author(Change { who: name.to_owned(), command: name.to_owned(), ..Change::default() })
    }

    fn change(&self, (before, after): (String, String)) -> Change {
        Change { before, after, ..self.0.clone() }
    }

    /// The events of a change that has made `after` of `before`: one for each object.
    pub fn changed(
        &self,
        request: &Request,
        (before, after): (&Overrides, &Overrides),
        described: &Described,
        holds: &Holds,
    ) -> Vec<Event> {
        let kind = match request {
            Request::Attach { .. } => EventKind::Attached,
            Request::Detach { .. } => EventKind::Detached,
            Request::Reset { .. } => EventKind::Reset,
            _ => EventKind::Changed,
        };
        let mut differing = differing((before, after), described);
        // With a volume its VM may have come or gone: that is one event, about what the command names.
        if let Request::Attach { target, .. } | Request::Detach { target, .. } = request
            && let Ok(object) = target.parse::<Object>()
        {
            let words = differing.remove(&object).unwrap_or_default();
            let change = Change { until: holds.until.clone(), undo: holds.undo.clone(), ..self.change(words) };
            return vec![about(&object, event(kind, change))];
        }
        let (count, mut undo) = (differing.len(), by_object(&holds.undo, &differing));
        // The first one takes back what was set, of all objects.
        let of_all = undo.remove(&None).unwrap_or_default();
        let mut events: Vec<Event> = Vec::new();
        for (object, words) in differing.into_iter().take(OBJECTS_MAX) {
            let own = undo.remove(&Some(object.clone())).unwrap_or_default();
            let own = of_all.iter().cloned().chain(own).collect();
            let change = Change { until: holds.until.clone(), undo: own, ..self.change(words) };
            events.push(about(&object, event(kind, change)));
        }
        events.extend((count > OBJECTS_MAX).then(|| self.further(kind, count - OBJECTS_MAX)));
        events
    }

    /// The event of objects that have none of their own.
    fn further(&self, kind: EventKind, count: usize) -> Event {
        of(&format!("{count} further objects"), event(kind, self.0.clone()))
    }

    /// The event of a volume that has grown.
    pub fn resized(
        &self,
        target: &str,
        (before, after): (Option<&Settings>, Option<&Settings>),
        holds: &Holds,
    ) -> Event {
        let size = |settings: Option<&Settings>| match settings {
            Some(Settings::Volume(volume)) => volume.size_bytes.map_or_else(String::new, amount::size),
            _ => String::new(),
        };
        let change = Change { until: holds.until.clone(), ..self.change((size(before), size(after))) };
        named(target, event(EventKind::Resized, change))
    }

    /// The event of something about an object, without figures.
    pub fn did(&self, kind: EventKind, target: &str) -> Event {
        named(target, event(kind, self.0.clone()))
    }

    /// The event of a refusal for lack of a role.
    pub fn refused(&self) -> Event {
        event(EventKind::RoleRefused, self.0.clone())
    }

    /// The event of a reload that was refused, and why.
    pub fn reload_refused(&self, why: String) -> Event {
        Event { detail: Some(why), ..event(EventKind::ReloadRefused, self.0.clone()) }
    }

    /// The events of a reload: one of its own, and one for each object with differences.
    pub fn applied(&self, plan: &[Effect]) -> Vec<Event> {
        let mut objects: BTreeMap<&str, (Vec<String>, Vec<String>)> = BTreeMap::new();
        for Effect { name, key, before, after, .. } in plan {
            let of = |value: &String| if key.is_empty() { value.clone() } else { format!("{key}={value}") };
            let (old, new) = objects.entry(name).or_default();
            old.push(of(before));
            new.push(of(after));
        }
        let changes = amount::counted(plan.len() as u64, "change", "changes");
        let all = Event { detail: Some(changes), ..event(EventKind::Applied, self.0.clone()) };
        let further = objects.len().checked_sub(OBJECTS_MAX + 1).map(|more| self.further(EventKind::Changed, more + 1));
        let each = objects.into_iter().take(OBJECTS_MAX).map(|(name, (old, new))| {
            let change = Change { reason: None, ..self.change((old.join(" "), new.join(" "))) };
            named(name, event(EventKind::Changed, change))
        });
        [all].into_iter().chain(each).chain(further).collect()
    }
}

/// Clients that were refused for lack of a role. A client without any role could fill the record with them, so each user has at most one event a
/// minute.
#[derive(Debug, Default)]
pub struct RoleRefusals(BTreeMap<u32, Instant>);

impl RoleRefusals {
    /// Whether the refusal of a user at `now` is an event.
    pub fn is_event(&mut self, uid: u32, now: Instant) -> bool {
        self.0.retain(|_, last| now < *last + REFUSAL_EVERY);
        let is_new = !self.0.contains_key(&uid) && self.0.len() < REFUSED_MAX;
        if is_new {
            self.0.insert(uid, now);
        }
        is_new
    }
}

/// Events of changes made at run time that are gone by themselves. `server` has what is in force instead.
pub fn gone(server: &Server, gone: &[(Override, Gone)]) -> Vec<Event> {
    let event_of = |(old, why): &(Override, Gone)| {
        let hidden = old.hidden();
        let now = match why {
            Gone::Expired { now } | Gone::Stopped { now } | Gone::Yielded { now } => now.clone(),
            Gone::Replaced | Gone::Orphaned => hidden.clone(),
            Gone::InFile => old.value(),
        };
        let settings = if let Object::Target(target) = &old.target { describe(server, target) } else { None };
        let (before, after) = (old.with_key(&old.value()), old.with_key(&stated(old, now, settings.as_ref())));
        let (detail, uid, reason) = (why.in_words(&hidden), Some(old.origin.uid), old.origin.reason.clone());
        let change = Change { uid, before, after, reason, ..Change::default() };
        about(&old.target, Event { detail: Some(detail), ..event(EventKind::Expired, change) })
    };
    gone.iter().map(event_of).collect()
}

/// Whether a character moves or hides others on a terminal.
pub fn is_unprintable(one: char) -> bool {
    one.is_control() || matches!(one, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A text as it is kept: what a client has sent may be long, and is shown on terminals of others.
fn kept(text: &str) -> String {
    let shown = |one: char| if is_unprintable(one) { '?' } else { one };
    let mut kept: String = text.chars().map(shown).take(WORDS_MAX).collect();
    if text.chars().nth(WORDS_MAX).is_some() {
        kept.push('…');
    }
    kept
}

fn event(kind: EventKind, mut change: Change) -> Event {
    let optional = [&mut change.reason, &mut change.until].into_iter().flatten();
    let texts = [&mut change.command, &mut change.before, &mut change.after].into_iter().chain(optional);
    texts.for_each(|text| *text = kept(text));
    // A part of them would undo a part, or nothing.
    if change.undo.iter().any(|command| kept(command) != *command) {
        change.undo.clear();
    }
    Event { time: Time::of_clock().0, kind, phase: Phase::Happened, change: Some(change), ..Event::default() }
}

/// Commands that undo a change, by the object that each is about; `None` for those that are about several, such as `sluice reset 'web*'` and
/// `sluice set web1 limit=5 --reset 'web*/limit'`.
fn by_object(undo: &[String], objects: &Differing) -> BTreeMap<Option<Object>, Vec<String>> {
    let names: BTreeMap<String, &Object> = objects.keys().map(|object| (object.to_string(), object)).collect();
    let mut found: BTreeMap<Option<Object>, Vec<String>> = BTreeMap::new();
    for command in undo {
        // The name of a change is that of its object with a key.
        let name = command.split(' ').nth(2).unwrap_or_default();
        let ends = name.match_indices(['/', '.']).map(|(at, _)| at).chain([name.len()]);
        let is_of_all = objects.len() > 1 && command.contains(" --reset ");
        let object = ends.filter(|_| !is_of_all).filter_map(|end| names.get(&name[..end])).next_back();
        found.entry(object.map(|object| (*object).clone())).or_default().push(command.clone());
    }
    found
}

/// An event about an object.
fn about(object: &Object, event: Event) -> Event {
    let event = of(&object.to_string(), event);
    match object {
        Object::Target(target) => Event { vm: Some(target.vm.clone()), volume: target.volume.clone(), ..event },
        Object::Policy(_) => event,
    }
}

/// An event about what has this name.
fn of(name: &str, mut event: Event) -> Event {
    event.change.iter_mut().for_each(|change| change.target = kept(name));
    event
}

/// An event about an object by its name, as in a command or in a plan.
fn named(name: &str, event: Event) -> Event {
    if let Some(device) = name.strip_prefix("device ").or_else(|| name.strip_prefix("uplink ")) {
        return of(name, Event { device: device.to_owned(), ..event });
    }
    match name.trim_end_matches(" net").parse::<Object>() {
        Ok(object) => about(&object, event),
        Err(_) => of(name, event),
    }
}

/// The objects that a change has changed, each with its values before and after.
type Differing = BTreeMap<Object, (String, String)>;

/// Objects as they were before a change, and after it.
pub type Described = BTreeMap<Object, (Option<Settings>, Option<Settings>)>;

fn differing((before, after): (&Overrides, &Overrides), described: &Described) -> Differing {
    let mut objects: BTreeMap<&Object, (Vec<String>, Vec<String>)> = BTreeMap::new();
    for Compared { of, before, after } in before.compared(after) {
        let (old, new) = objects.entry(&of.target).or_default();
        let (was, is) = described.get(&of.target).map_or((None, None), |(was, is)| (was.as_ref(), is.as_ref()));
        old.push(of.with_key(&stated(of, before, was)));
        new.push(of.with_key(&stated(of, after, is)));
    }
    objects.into_iter().map(|(object, (old, new))| (object.clone(), (old.join(" "), new.join(" ")))).collect()
}

/// Returns the value of a change in words, or what is in force where no file states one: the default, or that of a policy.
fn stated(of: &Override, value: String, settings: Option<&Settings>) -> String {
    let in_force = of.key().filter(|_| value == "-").and_then(|key| value_of(settings, key));
    in_force.unwrap_or(value)
}

/// A request as a command.
fn command(request: &Request) -> String {
    let verb = serde_json::to_value(request).ok().and_then(|request| Some(request["verb"].as_str()?.to_owned()));
    let more = match request {
        Request::Attach { target, .. } | Request::Detach { target, .. } | Request::AcceptLoss { target } => {
            vec![target.clone()]
        }
        Request::Takeover { target, from } => {
            let from = from.iter().flat_map(|from| ["--from".to_owned(), from.clone()]);
            [target.clone()].into_iter().chain(from).collect()
        }
        Request::Resize { target, size, .. } => vec![target.clone(), size.clone()],
        Request::Set { target, keys, reset, .. } => {
            let keys = keys.iter().map(|(key, value)| assignment(key, value));
            let reset = reset.iter().flat_map(|name| ["--reset".to_owned(), name.clone()]);
            [target.clone()].into_iter().chain(keys).chain(reset).collect()
        }
        Request::Reset { name, .. } => {
            name.as_ref().map_or_else(|| vec!["--all".to_owned()], |names| names.as_slice().to_vec())
        }
        Request::Apply { file, .. } => file.iter().map(|file| file.display().to_string()).collect(),
        _ => Vec::new(),
    };
    shell::command(["sluice".to_owned()].into_iter().chain(verb).chain(more))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn author(json: &str) -> Author {
        let peer = Peer { uid: 1000, gid: 1000, groups: [].into(), pid: None, login: None };
        Author::of(&serde_json::from_str(json).unwrap(), &peer, &Roles::of(&sluice_config::Access::default(), None))
    }

    #[test]
    fn a_refused_client_wrote_what_it_liked_into_the_record_and_onto_terminals() {
        let long = "x".repeat(100_000);
        let json = format!(
            r#"{{"verb":"set","target":"a\u001b[2J{long}","keys":{{"limit":"{long}"}},"how":{{"reason":"\u001b[2J{long}"}}}}"#
        );
        let event = author(&json).refused();
        let text = event.in_words();
        assert!(text.chars().count() < 3000 && !text.contains('\u{1b}'), "{text}");
        let change = event.change.unwrap();
        assert!(change.command.chars().count() <= WORDS_MAX + 1 && event.vm.is_none());
        assert_eq!((change.uid, change.role.as_deref()), (Some(1000), None));
    }

    #[test]
    fn a_user_that_was_refused_all_the_time_filled_the_record() {
        let (mut refusals, begin) = (RoleRefusals::default(), Instant::now());
        let mut events = |seconds: u64, uids: u32| {
            let now = begin + Duration::from_secs(seconds);
            (0..100_000).filter(|number| refusals.is_event(number % uids, now)).count()
        };
        assert_eq!([events(0, 3), events(59, 3), events(60, 3)], [3, 0, 3]);
        assert_eq!(events(61, 100_000), REFUSED_MAX - 3, "a user with many numbers");
    }

    #[test]
    fn a_long_command_that_undoes_a_change_was_cut_in_the_record() {
        let undo_of = |undo: &[String]| {
            event(EventKind::Changed, Change { undo: undo.to_vec(), ..Change::default() }).change.unwrap().undo
        };
        let (short, long) = ("sluice reset a/limit".to_owned(), format!("sluice reset {}", "a/limit ".repeat(200)));
        assert_eq!(undo_of(std::slice::from_ref(&short)).len(), 1);
        assert!(undo_of(&[short, long]).is_empty());
    }

    #[test]
    fn commands_that_undo_a_change_are_told_with_their_objects() {
        let objects = ["web1", "web2/root"].map(|name| (name.parse().unwrap(), Default::default())).into();
        let undo = ["sluice reset web1/limit", "sluice set web2/root limit=5", "sluice reset 'web*/weight'"];
        let found = by_object(&undo.map(str::to_owned), &objects);
        let with_reset = "sluice set web1 limit=5 --reset 'web*/limit'".to_owned();
        assert_eq!(by_object(std::slice::from_ref(&with_reset), &objects)[&None], [with_reset]);
        let of = |name: Option<&str>| found[&name.map(|name| name.parse().unwrap())].clone();
        assert_eq!([of(Some("web1")), of(Some("web2/root")), of(None)], undo.map(|command| vec![command.to_owned()]));
    }
}
