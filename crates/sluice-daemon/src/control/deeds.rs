//! Events of what users do: each says who, what was in force before and after, for how long, why, and how to undo it.
//!
//! Example: `alice` may run sudo. `sudo sluice set batch limit=300 --for 10m --reason "ticket 4711"` is the event "batch was changed:
//! limit=500 iops -> limit=300 iops, by alice (role admin), until ..., reason: ticket 4711; undo: sluice reset batch/limit".

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use sluice_api::change::{Effect, Holds, Settings};
use sluice_api::event::{Deed, Event, EventKind, Phase};
use sluice_api::request::Request;
use sluice_api::{amount, shell};
use sluice_config::changes::Object;

use super::roles::Roles;
use super::socket::Peer;
use crate::state::overrides::{Gone, Override, Overrides};
use crate::state::time::Time;

/// Maximum number of objects of one reload with an event of their own.
const OBJECTS_MAX: usize = 1000;

/// Maximum length of a command, and of what was in force, in characters.
const WORDS_MAX: usize = 1000;
/// Minimum time between two events of refusals of one user.
const REFUSAL_EVERY: Duration = Duration::from_secs(60);

/// Who does something, and with which command.
#[derive(Debug, Clone, Default)]
pub struct Doer(Deed);

impl Doer {
    /// The client that makes a request.
    pub fn of(request: &Request, peer: &Peer, roles: &Roles) -> Doer {
        let role = roles.name_of(peer).map(str::to_owned);
        let (command, reason) = command(request);
        let Peer { uid, pid, login, .. } = peer;
        Doer(Deed { uid: Some(*uid), login_uid: *login, pid: *pid, role, command, reason, ..Deed::default() })
    }

    /// A signal, whose sender is not known.
    pub fn signal(name: &str) -> Doer {
        Doer(Deed { who: name.to_owned(), command: name.to_owned(), ..Deed::default() })
    }

    fn deed(&self, (before, after): (String, String)) -> Deed {
        Deed { before, after, ..self.0.clone() }
    }

    /// The events of a change that has made `after` of `before`: one for each object.
    pub fn changed(&self, request: &Request, (before, after): (&Overrides, &Overrides), holds: &Holds) -> Vec<Event> {
        let kind = match request {
            Request::Attach { .. } => EventKind::Attached,
            Request::Detach { .. } => EventKind::Detached,
            Request::Reset { .. } => EventKind::Reset,
            _ => EventKind::Changed,
        };
        let mut differing = differing(before, after);
        // With a volume its VM may have come or gone: that is one event, about what the command names.
        if let Request::Attach { target, .. } | Request::Detach { target, .. } = request
            && let Ok(object) = target.parse::<Object>()
        {
            let words = differing.remove(&object).unwrap_or_default();
            let deed = Deed { until: holds.until.clone(), undo: holds.undo.clone(), ..self.deed(words) };
            return vec![about(&object, event(kind, deed))];
        }
        let events = differing.into_iter().map(|(object, words)| {
            let undo = holds.undo.iter().filter(|command| concerns(command, &object)).cloned().collect();
            about(&object, event(kind, Deed { until: holds.until.clone(), undo, ..self.deed(words) }))
        });
        events.collect()
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
        let deed = Deed { until: holds.until.clone(), ..self.deed((size(before), size(after))) };
        named(target, event(EventKind::Resized, deed))
    }

    /// The event of something about an object, without figures.
    pub fn did(&self, kind: EventKind, target: &str) -> Event {
        named(target, event(kind, self.0.clone()))
    }

    /// The event of a refusal for lack of a role.
    pub fn refused(&self) -> Event {
        let target = self.0.command.split(' ').nth(2).unwrap_or_default();
        self.did(EventKind::RoleRefused, target)
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
        let each = objects.into_iter().take(OBJECTS_MAX).map(|(name, (old, new))| {
            let deed = Deed { reason: None, ..self.deed((old.join(" "), new.join(" "))) };
            named(name, event(EventKind::Changed, deed))
        });
        [all].into_iter().chain(each).collect()
    }
}

/// Clients that were refused for lack of a role. A client without any role could fill the record with them, so each user has at most one event a
/// minute.
#[derive(Debug, Default)]
pub struct RoleRefusals(BTreeMap<u32, Instant>);

impl RoleRefusals {
    /// Whether the refusal of a user is an event.
    pub fn is_event(&mut self, uid: u32) -> bool {
        self.0.retain(|_, last| last.elapsed() < REFUSAL_EVERY);
        let is_new = !self.0.contains_key(&uid);
        if is_new {
            self.0.insert(uid, Instant::now());
        }
        is_new
    }
}

/// Events of changes made at run time that are gone by themselves.
pub fn gone(gone: &[(Override, Gone)]) -> Vec<Event> {
    let event_of = |(old, why): &(Override, Gone)| {
        let key = |value: &str| old.key().map_or_else(|| value.to_owned(), |key| format!("{key}={value}"));
        let after = match why {
            Gone::Expired { now } | Gone::Stopped { now } | Gone::Yielded { now } => key(now),
            Gone::Replaced | Gone::Orphaned | Gone::InFile => key(&old.hidden()),
        };
        let (detail, uid) = (why.in_words(&old.hidden()), Some(old.origin.uid));
        let reason = old.origin.reason.clone();
        let deed = Deed { uid, before: key(&old.value()), after, reason, ..Deed::default() };
        about(&old.target, Event { detail: Some(detail), ..event(EventKind::Expired, deed) })
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

fn event(kind: EventKind, mut deed: Deed) -> Event {
    for text in [&mut deed.command, &mut deed.before, &mut deed.after] {
        *text = kept(text);
    }
    Event { time: Time::of_clock().0, kind, phase: Phase::Happened, deed: Some(deed), ..Event::default() }
}

/// Whether a command that undoes a change is about this object.
fn concerns(command: &str, object: &Object) -> bool {
    let object = object.to_string();
    let target = command.split(' ').nth(2).and_then(|target| target.strip_prefix(&*object));
    target.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '.']))
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
    event.deed.iter_mut().for_each(|deed| deed.target = kept(name));
    event
}

/// An event about an object by its name, as in a command or in a plan.
fn named(name: &str, event: Event) -> Event {
    if let Some(device) = name.strip_prefix("device ").or_else(|| name.strip_prefix("uplink ")) {
        return of(name, Event { device: device.to_owned(), ..event });
    }
    match name.trim_end_matches(" net").parse::<Object>() {
        Ok(object) if object.to_string().chars().count() <= WORDS_MAX => about(&object, event),
        _ => of(name, event),
    }
}

/// What differs, in words, by object.
fn differing<'a>(before: &'a Overrides, after: &'a Overrides) -> BTreeMap<Object, (String, String)> {
    let (dropped, new) = before.differing(after);
    let by_name = |all: Vec<&'a Override>| all.into_iter().map(|known| (known.name(), known)).collect();
    let (old, new): (BTreeMap<String, &Override>, BTreeMap<String, &Override>) = (by_name(dropped), by_name(new));
    let mut objects: BTreeMap<Object, (Vec<String>, Vec<String>)> = BTreeMap::new();
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for name in names {
        let (was, is) = (old.get(name), new.get(name));
        let Some(known) = was.or(is) else { continue };
        let of = |value: String| known.key().map_or_else(|| value.clone(), |key| format!("{key}={value}"));
        let (earlier, later) = objects.entry(known.target.clone()).or_default();
        earlier.push(of(was.map_or_else(|| before.instead_of(known), |was| was.value())));
        later.push(of(is.map_or_else(|| after.instead_of(known), |is| is.value())));
    }
    objects.into_iter().map(|(object, (old, new))| (object, (old.join(" "), new.join(" ")))).collect()
}

/// A request as a command, and its reason.
fn command(request: &Request) -> (String, Option<String>) {
    let mut words = vec!["sluice".to_owned()];
    let reason = match request {
        Request::Attach { target, how, .. } => {
            words.extend(["attach".to_owned(), target.clone()]);
            how.reason.clone()
        }
        Request::Detach { target, how } => {
            words.extend(["detach".to_owned(), target.clone()]);
            how.reason.clone()
        }
        Request::Resize { target, size, how } => {
            words.extend(["resize".to_owned(), target.clone(), size.clone()]);
            how.reason.clone()
        }
        Request::Set { target, keys, how } => {
            words.extend(["set".to_owned(), target.clone()]);
            let value = |value: &toml::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            words.extend(keys.iter().map(|(key, of)| format!("{key}={}", value(of))));
            how.reason.clone()
        }
        Request::Reset { name, reason, .. } => {
            words.extend(["reset".to_owned(), name.clone().unwrap_or_else(|| "--all".to_owned())]);
            reason.clone()
        }
        Request::Apply { file, reason, .. } => {
            words.extend(["apply".to_owned(), file.display().to_string()]);
            reason.clone()
        }
        Request::AcceptLoss { target } => {
            words.extend(["accept-loss".to_owned(), target.clone()]);
            None
        }
        Request::TestAlert { class } => {
            words.extend(["alert".to_owned(), "--test".to_owned()].into_iter().chain(class.clone()));
            None
        }
        _ => None,
    };
    (shell::command(words), reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doer(json: &str) -> Doer {
        let peer = Peer { uid: 1000, gid: 1000, groups: [].into(), pid: None, login: None };
        Doer::of(&serde_json::from_str(json).unwrap(), &peer, &Roles::of(&sluice_config::Access::default(), None))
    }

    #[test]
    fn a_refused_client_wrote_what_it_liked_into_the_record_and_onto_terminals() {
        let long = "x".repeat(100_000);
        let json = format!(r#"{{"verb":"set","target":"a\u001b[2J{long}","keys":{{"limit":"{long}"}}}}"#);
        let event = doer(&json).refused();
        let text = event.in_words();
        assert!(text.chars().count() < 3000 && !text.contains('\u{1b}'), "{text}");
        let deed = event.deed.unwrap();
        assert!(deed.command.chars().count() <= WORDS_MAX + 1 && event.vm.is_none());
        assert_eq!((deed.uid, deed.role.as_deref()), (Some(1000), None));
    }

    #[test]
    fn a_user_that_was_refused_all_the_time_filled_the_record() {
        let mut refusals = RoleRefusals::default();
        let events = (0..1000).filter(|number| refusals.is_event(number % 3)).count();
        assert_eq!(events, 3);
    }
}
