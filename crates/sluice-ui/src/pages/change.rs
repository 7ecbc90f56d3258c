//! The change of a VM or volume: a form, a dry run in words, the change itself.
//!
//! The form keeps the tag of the version that it was made from. If the object was changed since, the daemon refuses the change, and the form shows
//! what is in force now beside what was typed.

use std::collections::BTreeMap;

use askama::Template;
use axum::Router;
use axum::extract::rejection::{FormRejection, PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use hyper::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use sluice_api::call::path_of;
use sluice_api::change::{Changed, Preview, until_in_words};
use sluice_api::http::{Call, Failed};
use sluice_api::problem::{Fault, Kind};

use super::in_force::{InForce, shown};
use super::{Frame, NoParameters, Page, Shown, show};
use crate::done::{Change, set};
use crate::failure::Failure;
use crate::server::{Shared, State as Process};
use crate::text::{filters, part};

pub(super) const PAGE: Page = Page { nav: None, routes };

/// For how long a change holds: seconds, or a word.
const TERMS: [(&str, &str); 7] = [
    ("600", "10 minutes"),
    ("3600", "1 hour"),
    ("28800", "8 hours"),
    ("86400", "1 day"),
    ("604800", "1 week"),
    ("always", "until the host file changes it"),
    ("persist", "for good, in a drop-in of the host file"),
];
/// The choice of a new form: a change that ends by itself is the safe one.
const TERM: &str = "3600";

/// A key of the host file with a field in the form.
struct Key {
    /// With dots between its parts.
    name: &'static str,
    label: &'static str,
    hint: &'static str,
    /// What is written if there is none.
    none: &'static str,
}

const KEYS: [Key; 3] = [
    Key { name: "reservation", label: "Reservation", hint: "For example 500 iops, 20MiB/s, none.", none: "none" },
    Key { name: "limit", label: "Limit", hint: "For example 2000 iops, 50MiB/s, unlimited.", none: "unlimited" },
    Key { name: "weight", label: "Weight", hint: "From 0.01 to 1000000, usually 100.", none: "100" },
];
/// Those of a VM with NICs.
const NET_KEYS: [Key; 3] = [
    Key {
        name: "net.reservation",
        label: "Reservation of its NICs",
        hint: "For example 100Mbit/s, none.",
        none: "none",
    },
    Key { name: "net.limit", label: "Limit of its NICs", hint: "For example 1Gbit/s, unlimited.", none: "unlimited" },
    Key { name: "net.weight", label: "Weight of its NICs", hint: "From 0.01 to 1000000, usually 100.", none: "100" },
];

fn routes() -> Router<Shared> {
    Router::new()
        .route("/change/{vm}", get(form_of_vm).post(change_vm))
        .route("/change/{vm}/{*volume}", get(form_of_volume).post(change_volume))
}

/// What is changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    vm: String,
    /// A volume, or `nic/NIC`.
    volume: Option<String>,
}

/// What was typed.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Typed {
    reservation: String,
    limit: String,
    weight: String,
    #[serde(rename = "net.reservation")]
    net_reservation: Option<String>,
    #[serde(rename = "net.limit")]
    net_limit: Option<String>,
    #[serde(rename = "net.weight")]
    net_weight: Option<String>,
    term: String,
    reason: String,
    etag: String,
    /// The texts that the form was made from, by key, as JSON.
    was: String,
    /// `preview`, `confirm` or `edit`.
    step: String,
}

/// A form, with what is in force, and what came of it.
#[derive(Debug, Clone, Default, Template)]
#[template(path = "form.html")]
pub(super) struct Form {
    name: String,
    action: String,
    fields: Vec<Field>,
    terms: Vec<Term>,
    reason: String,
    etag: String,
    /// The texts in force, by key, as JSON.
    was: String,
    /// Why it was refused.
    problem: Option<String>,
}

#[derive(Debug, Clone)]
struct Field {
    name: &'static str,
    label: &'static str,
    hint: &'static str,
    typed: String,
    /// The value that the object has of its own.
    own: String,
    /// The value in force, which may be that of a policy.
    in_force: Option<String>,
    problem: Option<String>,
}

#[derive(Debug, Clone)]
struct Term {
    value: &'static str,
    text: &'static str,
    is_chosen: bool,
}

#[derive(Template)]
#[template(path = "change.html")]
struct ChangePage {
    frame: Frame,
    back: String,
    form: Form,
    preview: Option<Preview>,
    /// What was typed, for the form that confirms it.
    typed: Vec<(&'static str, String)>,
    term: &'static str,
}

/// A change as a request has it.
struct Wanted {
    body: Value,
    /// The change of each key in words.
    text: Vec<String>,
}

/// Why a change is not made.
struct Refused {
    status: StatusCode,
    detail: String,
    /// Keys that are wrong, with dots, and what is wrong with each.
    keys: Vec<(String, String)>,
}

impl Target {
    pub(super) fn vm(vm: &str) -> Target {
        Target { vm: vm.to_owned(), volume: None }
    }

    /// The target with this name, which is `VM`, `VM/VOLUME` or `VM/nic/NIC`.
    pub(super) fn named(name: &str) -> Target {
        match name.split_once('/') {
            Some((vm, volume)) => Target { vm: vm.to_owned(), volume: Some(volume.to_owned()) },
            None => Target::vm(name),
        }
    }

    pub(super) fn name(&self) -> String {
        self.volume.as_ref().map_or_else(|| self.vm.clone(), |volume| format!("{}/{volume}", self.vm))
    }

    /// Its path at the daemon.
    pub(super) fn path(&self) -> String {
        path_of(&self.name())
    }

    fn action(&self) -> String {
        let name = self.name();
        format!("/change/{}", name.split('/').map(part).collect::<Vec<_>>().join("/"))
    }

    /// The page of its VM.
    pub(super) fn page(&self) -> String {
        format!("/vms/{}", part(&self.vm))
    }

    /// The tag of the version in force.
    pub(super) async fn version(&self, process: &Process) -> Result<String, Failed> {
        Ok(self.keys(process).await?.etag)
    }

    async fn in_force(&self, process: &Process) -> Result<InForce, Failed> {
        let keys = self.keys(process).await?;
        let vms = process.daemon.list(&format!("/v1/vms/{}?fields=policy,volumes", part(&self.vm))).await;
        Ok(keys.with_policies(&vms.unwrap_or_default(), self.volume.as_deref()))
    }

    async fn keys(&self, process: &Process) -> Result<InForce, Failed> {
        let (mut value, etag): (Value, _) = process.daemon.tagged(format!("{}/keys", self.path())).await?;
        Ok(InForce { keys: value["keys"].take(), etag: etag.unwrap_or_default(), ..InForce::default() })
    }
}

/// The value that a text of the form stands for.
fn read(key: &str, text: &str) -> Value {
    if key.ends_with("weight") {
        return text
            .parse::<u64>()
            .map(Value::from)
            .or_else(|_| text.parse::<f64>().map(Value::from))
            .unwrap_or(text.into());
    }
    if let Some(value) = text.strip_prefix('{').and_then(|_| serde_json::from_str(text).ok()) {
        return value;
    }
    match text.split_once(',').map(|(one, other)| (one.trim(), other.trim())) {
        Some((iops, bytes)) if iops.contains("iops") => json!({ "iops": iops, "bytes": bytes }),
        Some((bytes, iops)) => json!({ "iops": iops, "bytes": bytes }),
        None => text.into(),
    }
}

impl Typed {
    /// The text of each key that the form has.
    fn texts(&self) -> Vec<(&'static Key, &str)> {
        let disk = [&self.reservation, &self.limit, &self.weight];
        let net = [&self.net_reservation, &self.net_limit, &self.net_weight];
        let of_net = NET_KEYS.iter().zip(net).filter_map(|(key, text)| Some((key, text.as_deref()?)));
        KEYS.iter().zip(disk.map(String::as_str)).chain(of_net).map(|(key, text)| (key, text.trim())).collect()
    }

    /// A form as nobody has typed into it yet.
    fn of(in_force: &InForce, has_nics: bool) -> Typed {
        let text = |key: &str| shown(&in_force.keys, key);
        let net = |key: &str| has_nics.then(|| text(key));
        Typed {
            reservation: text("reservation"),
            limit: text("limit"),
            weight: text("weight"),
            net_reservation: net("net.reservation"),
            net_limit: net("net.limit"),
            net_weight: net("net.weight"),
            term: TERM.to_owned(),
            etag: in_force.etag.clone(),
            ..Typed::default()
        }
    }

    /// The texts that the form was made from, by key; none if it does not state them.
    fn was(&self) -> BTreeMap<String, String> {
        serde_json::from_str(&self.was).unwrap_or_default()
    }

    fn form(&self, target: &Target, in_force: Option<&InForce>) -> Form {
        let known = |key: &Key| in_force.map_or(String::new(), |in_force| shown(&in_force.keys, key.name));
        // What nobody has touched must not take back what others have set since.
        let was = self.was();
        let typed = |key: &Key, text: &str| match in_force {
            Some(_) if is_untouched(&was, key, text) => known(key),
            _ => text.to_owned(),
        };
        let field = |(key, text): (&'static Key, &str)| Field {
            name: key.name,
            label: key.label,
            hint: key.hint,
            typed: typed(key, text),
            own: known(key),
            in_force: in_force.and_then(|in_force| in_force.value(key.name)),
            problem: None,
        };
        let mut fields: Vec<Field> = self.texts().into_iter().map(field).collect();
        let now: BTreeMap<&str, &str> = fields.iter().map(|field| (field.name, field.own.as_str())).collect();
        let was = in_force.map_or(self.was.clone(), |_| json!(now).to_string());
        if target.volume.as_ref().is_some_and(|name| name.starts_with("nic/")) {
            // Its keys have the same names, and rates of bits.
            fields.iter_mut().zip(&NET_KEYS).for_each(|(field, key)| field.hint = key.hint);
        }
        Form {
            name: target.name(),
            action: target.action(),
            fields,
            terms: TERMS.iter().map(|(value, text)| Term { value, text, is_chosen: *value == self.term }).collect(),
            reason: self.reason.clone(),
            etag: in_force.map_or(self.etag.clone(), |in_force| in_force.etag.clone()),
            was,
            problem: None,
        }
    }

    /// The change that is asked for: keys whose text is not the one in force.
    fn wanted(&self, in_force: &InForce) -> Result<Wanted, Refused> {
        let refuse = |key: &str, detail: String| Refused::new(StatusCode::BAD_REQUEST, detail, Some(key));
        let (mut keys, mut text, was) = (json!({}), Vec::new(), self.was());
        for (key, typed) in self.texts() {
            let known = shown(&in_force.keys, key.name);
            if typed == known || is_untouched(&was, key, typed) {
                continue;
            }
            if typed.is_empty() {
                return Err(refuse(
                    key.name,
                    format!("{}: write {} for none, or {known} to leave it", key.label, key.none),
                ));
            }
            set(&mut keys, key.name, read(key.name, typed));
            let in_force = in_force.value(key.name).filter(|_| known.is_empty());
            let before = in_force.as_deref().unwrap_or(if known.is_empty() { "not set" } else { &known });
            text.push(format!("{} {typed}, was {before}", key.name));
        }
        if text.is_empty() {
            return Err(Refused::new(
                StatusCode::BAD_REQUEST,
                "Nothing is changed: all values are those in force".to_owned(),
                None,
            ));
        }
        let mut body = json!({ "keys": keys });
        match (self.term.as_str(), self.term.parse::<u64>()) {
            // It is meant to stay, also in place of a change that ends by itself.
            ("always", _) => body["permanent"] = true.into(),
            ("persist", _) => {
                body["persist"] = true.into();
                body["permanent"] = true.into();
            }
            (term, Ok(seconds)) if TERMS.iter().any(|(known, _)| *known == term) => body["seconds"] = seconds.into(),
            (term, _) => {
                let detail = format!("For how long: {term} is not in the list");
                return Err(Refused::new(StatusCode::BAD_REQUEST, detail, None));
            }
        }
        let reason = self.reason.trim();
        if !reason.is_empty() {
            body["reason"] = reason.into();
        }
        Ok(Wanted { body, text })
    }

    /// Everything, for a form that confirms it.
    fn hidden(&self) -> Vec<(&'static str, String)> {
        let texts = self.texts().into_iter().map(|(key, text)| (key.name, text.to_owned()));
        let others = [("term", &self.term), ("reason", &self.reason), ("etag", &self.etag), ("was", &self.was)];
        texts.chain(others.map(|(name, text)| (name, text.clone()))).collect()
    }
}

/// Whether a text is still the one that the form was made with.
fn is_untouched(was: &BTreeMap<String, String>, key: &Key, text: &str) -> bool {
    was.get(key.name).is_some_and(|was| was == text)
}

impl Refused {
    fn new(status: StatusCode, detail: String, key: Option<&str>) -> Refused {
        let keys = key.map(|key| (key.to_owned(), detail.clone())).into_iter().collect();
        Refused { status, detail, keys }
    }
}

impl From<Failed> for Refused {
    fn from(failed: Failed) -> Refused {
        let faults = match &failed {
            Failed::Refused(problem) => problem.errors.as_slice(),
            _ => &[],
        };
        let words = |fault: &Fault| match &fault.hint {
            Some(hint) => format!("{}; {hint}", fault.detail),
            None => fault.detail.clone(),
        };
        let key = |fault: &Fault| {
            let key = fault.pointer.as_deref()?.strip_prefix("/keys/")?.replace('/', ".");
            Some((key, words(fault)))
        };
        let keys = faults.iter().filter_map(key).collect();
        let all: Vec<String> = faults.iter().map(words).collect();
        let is_stale = matches!(&failed, Failed::Refused(problem) if problem.kind() == Some(Kind::Changed));
        let Failure { status, title, mut detail } = failed.into();
        if !all.is_empty() {
            detail = all.join(". ");
        } else if detail.is_empty() {
            detail = title;
        }
        if is_stale {
            detail += ". The form has the values in force beside yours: look at them, and preview it again.";
        }
        Refused { status, detail, keys }
    }
}

impl Form {
    /// The form of a VM, without a change.
    pub(super) async fn of(process: &Process, target: Target) -> Result<Form, Failed> {
        let in_force = target.in_force(process).await?;
        let has_nics = target.volume.is_none() && has_nics(process, &target.vm).await?;
        Ok(Typed::of(&in_force, has_nics).form(&target, Some(&in_force)))
    }

    fn refused(mut self, refused: &Refused) -> Form {
        for (key, problem) in &refused.keys {
            // A key within a field's table, such as `limit.iops`, is in its field.
            let has = |name: &str| key == name || key.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
            let field = self.fields.iter_mut().find(|field| has(field.name));
            field.into_iter().for_each(|field| field.problem = Some(problem.clone()));
        }
        self.problem = Some(refused.detail.clone());
        self
    }
}

async fn has_nics(process: &Process, vm: &str) -> Result<bool, Failed> {
    let on_devices: Vec<Value> = process.daemon.list(&format!("/v1/vms/{}?fields=volumes", part(vm))).await?;
    let mut volumes = on_devices.iter().filter_map(|on| on["volumes"].as_array()).flatten();
    Ok(volumes.any(|volume| volume["volume"].as_str().is_some_and(|name| name.starts_with("nic/"))))
}

type Parameters = Result<Query<NoParameters>, QueryRejection>;
type TypedForm = Result<axum::Form<Typed>, FormRejection>;

async fn form_of_vm(State(shared): State<Shared>, vm: Result<Path<String>, PathRejection>, none: Parameters) -> Shown {
    none?;
    blank(&shared, Target::vm(&vm?)).await
}

async fn form_of_volume(
    State(shared): State<Shared>,
    names: Result<Path<(String, String)>, PathRejection>,
    none: Parameters,
) -> Shown {
    none?;
    let Path((vm, volume)) = names?;
    blank(&shared, Target { vm, volume: Some(volume) }).await
}

async fn change_vm(
    State(shared): State<Shared>,
    vm: Result<Path<String>, PathRejection>,
    typed: TypedForm,
) -> Result<Response, Failure> {
    let (target, axum::Form(typed)) = (Target::vm(&vm?), typed?);
    step(&shared, target, typed).await
}

async fn change_volume(
    State(shared): State<Shared>,
    names: Result<Path<(String, String)>, PathRejection>,
    typed: TypedForm,
) -> Result<Response, Failure> {
    let (Path((vm, volume)), axum::Form(typed)) = (names?, typed?);
    step(&shared, Target { vm, volume: Some(volume) }, typed).await
}

async fn blank(shared: &Shared, target: Target) -> Shown {
    let form = Form::of(shared, target.clone()).await?;
    show(&page(&target, form, None))
}

fn page(target: &Target, form: Form, preview: Option<(Preview, &Typed)>) -> ChangePage {
    let term = |typed: &Typed| TERMS.iter().find(|(value, _)| *value == typed.term).map_or("", |(_, text)| text);
    ChangePage {
        frame: Frame { nav: "/vms", here: target.action(), ..Frame::titled(&format!("Change {}", target.name())) },
        back: target.page(),
        form,
        term: preview.as_ref().map_or("", |(_, typed)| term(typed)),
        typed: preview.as_ref().map_or_else(Vec::new, |(_, typed)| typed.hidden()),
        preview: preview.map(|(preview, _)| preview),
    }
}

/// Takes the next step of a form: the dry run, the change, or back to the form.
async fn step(shared: &Shared, target: Target, typed: Typed) -> Result<Response, Failure> {
    let in_force = target.in_force(shared).await;
    let refused = match (&in_force, typed.step.as_str()) {
        (Err(_), _) => None,
        (Ok(_), "edit") => {
            let form = typed.form(&target, in_force.as_ref().ok());
            return Ok(show(&page(&target, form, None))?.into_response());
        }
        (Ok(in_force), step @ ("preview" | "confirm")) => match take(shared, &target, &typed, in_force, step).await {
            Ok(response) => return Ok(response),
            Err(refused) => Some(refused),
        },
        (Ok(_), other) => {
            return Err(Failure::invalid(format!("step is {other}; it may be preview, confirm or edit.")));
        }
    };
    let (refused, in_force) = match in_force {
        Ok(in_force) => (refused, Some(in_force)),
        // What was typed is kept also if the VM has gone meanwhile.
        Err(failed) => (Some(failed.into()), None),
    };
    let refused = refused.unwrap_or_else(|| Refused::new(StatusCode::CONFLICT, "It was not changed".to_owned(), None));
    let form = typed.form(&target, in_force.as_ref()).refused(&refused);
    Ok((refused.status, show(&page(&target, form, None))?).into_response())
}

async fn take(
    shared: &Shared,
    target: &Target,
    typed: &Typed,
    in_force: &InForce,
    step: &str,
) -> Result<Response, Refused> {
    let wanted = typed.wanted(in_force)?;
    let (dry_run, call) = match step {
        "preview" => (true, "?dry_run=1"),
        _ => (false, ""),
    };
    let call = Call::send(Method::PATCH, format!("{}{call}", target.path()), wanted.body.clone());
    let call = if typed.etag.is_empty() { call } else { call.header("if-match", typed.etag.clone()) };
    let answer = shared.daemon.ask(&call).await?;
    if dry_run {
        let preview: Preview = answer.read()?;
        let form = typed.form(target, Some(in_force));
        let broken = |failure: Failure| Refused::new(failure.status, failure.detail, None);
        return Ok(show(&page(target, form, Some((preview, typed)))).map_err(broken)?.into_response());
    }
    let mut answer: Value = answer.read()?;
    // The change is made, whatever else is known of it.
    let changed: Changed = serde_json::from_value(answer["result"].take()).unwrap_or_default();
    let etag = target.in_force(shared).await.ok().map(|made| made.etag);
    let number = shared.done.add(Change { etag, ..done(target, &wanted, changed) });
    Ok(Redirect::to(&format!("{}?done={number}", target.page())).into_response())
}

/// A change that was made.
fn done(target: &Target, wanted: &Wanted, changed: Changed) -> Change {
    let term = changed.holds.until.as_deref().unwrap_or_default();
    let end = term.parse::<jiff::Timestamp>().ok().and_then(|end| u64::try_from(end.as_second()).ok());
    let until = changed.holds.until.as_deref().map(until_in_words).unwrap_or_default();
    Change {
        number: 0,
        target: target.name(),
        text: wanted.text.clone(),
        undo: changed.holds.undo_requests,
        warnings: changed.warnings,
        etag: None,
        until,
        end,
        is_undone: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_api::policy::Policy;
    use sluice_api::problem::Problem;
    use sluice_api::status::{Vm, Volume};

    fn in_force() -> InForce {
        let keys = json!({ "limit": "500 iops", "weight": 100, "net": { "limit": "1Gbit/s" } });
        InForce { keys, etag: "\"1\"".to_owned(), ..InForce::default() }
    }

    #[test]
    fn values_are_shown_and_read_as_the_host_file_has_them() {
        let both = json!({ "limit": { "iops": "8000 iops@8KiB", "bytes": "200MiB/s" } });
        assert_eq!(shown(&both, "limit"), "8000 iops@8KiB, 200MiB/s");
        assert_eq!(read("limit", "8000 iops@8KiB, 200MiB/s"), both["limit"]);
        assert_eq!(read("limit", "200MiB/s, 8000 iops@8KiB"), both["limit"]);
        assert_eq!(
            (read("weight", "50"), read("net.weight", "0.5"), read("weight", "x")),
            (json!(50), json!(0.5), json!("x"))
        );
        assert_eq!(
            (shown(&json!({}), "net.limit"), shown(&in_force().keys, "net.limit")),
            (String::new(), "1Gbit/s".to_owned())
        );
    }

    #[test]
    fn only_keys_that_differ_are_changed() {
        let typed = Typed {
            limit: " 300 iops ".to_owned(),
            reason: " noisy ".to_owned(),
            term: "always".to_owned(),
            ..Typed::of(&in_force(), true)
        };
        let wanted = typed.wanted(&in_force()).ok().unwrap();
        assert_eq!(wanted.body, json!({ "keys": { "limit": "300 iops" }, "permanent": true, "reason": "noisy" }));
        assert_eq!(wanted.text, ["limit 300 iops, was 500 iops"]);
        let net = Typed { net_weight: Some("5".to_owned()), ..Typed::of(&in_force(), true) };
        let body = net.wanted(&in_force()).ok().unwrap().body;
        assert!(body["keys"] == json!({ "net": { "weight": 5 } }) && body["seconds"] == 3600, "{body}");
        let same = Typed::of(&in_force(), false).wanted(&in_force()).err().unwrap();
        assert!(same.detail.starts_with("Nothing is changed"));
    }

    #[test]
    fn a_refused_form_keeps_what_was_typed_and_names_the_field() {
        let empty = Typed { limit: String::new(), ..Typed::of(&in_force(), false) };
        let refused = empty.wanted(&in_force()).err().unwrap();
        assert_eq!(
            (refused.keys[0].0.as_str(), refused.detail.as_str()),
            ("limit", "Limit: write unlimited for none, or 500 iops to leave it")
        );
        let typed = Typed {
            limit: "<x>".to_owned(),
            reason: "why".to_owned(),
            term: "600".to_owned(),
            ..Typed::of(&in_force(), false)
        };
        let fault = |key: &str, detail: &str| Fault {
            pointer: Some(format!("/keys/{key}")),
            detail: detail.to_owned(),
            hint: Some("write another".to_owned()),
            ..Fault::default()
        };
        let errors = vec![fault("limit/iops", "limit is <x>"), fault("weight", "weight is")];
        let problem = Problem { errors, ..Kind::Invalid.with("all") };
        let form =
            typed.form(&Target::vm("db1"), Some(&in_force())).refused(&Failed::Refused(Box::new(problem)).into());
        let limit = &form.fields[1];
        assert_eq!(
            (limit.typed.as_str(), limit.own.as_str(), limit.problem.as_deref()),
            ("<x>", "500 iops", Some("limit is <x>; write another"))
        );
        assert!(
            form.fields[2].problem.is_some() && form.reason == "why" && form.terms[0].is_chosen && form.etag == "\"1\""
        );
        let html = show(&page(&Target::vm("db1"), form, None)).unwrap().0;
        assert!(html.contains("value=\"&#60;x&#62;\"") && html.contains("aria-invalid=\"true\""), "{html}");
    }

    #[test]
    fn fields_that_nobody_has_touched_follow_what_others_have_set() {
        let made = Typed::of(&in_force(), false).form(&Target::vm("db1"), Some(&in_force()));
        let typed = Typed { weight: "7".to_owned(), was: made.was, ..Typed::of(&in_force(), false) };
        let keys = json!({ "limit": "300 iops", "weight": 100 });
        let now = InForce { keys, etag: "\"2\"".to_owned(), ..InForce::default() };
        assert_eq!(typed.wanted(&now).ok().unwrap().body["keys"], json!({ "weight": 7 }));
        let form = typed.form(&Target::vm("db1"), Some(&now));
        let texts: Vec<&str> = form.fields.iter().map(|field| field.typed.as_str()).collect();
        assert_eq!((texts, form.etag.as_str()), (vec!["", "300 iops", "7"], "\"2\""));
        assert!(form.was.contains("300 iops"), "{}", form.was);
    }

    #[test]
    fn what_comes_from_a_policy_is_in_force() {
        let policy = Policy { limit_iops: Some(500.0), weight: Some(300.0), ..Policy::default() };
        let nic = Volume {
            volume: "nic/n0".to_owned(),
            policy: Policy { limit_bytes_per_second: Some(125_000_000), ..Policy::default() },
            ..Volume::default()
        };
        let vms =
            [Vm { policy: nic.policy.clone(), volumes: vec![nic], ..Vm::default() }, Vm { policy, ..Vm::default() }];
        let keys = || InForce { keys: json!({ "policy": "gold", "weight": 300 }), ..InForce::default() };
        let of_vm = keys().with_policies(&vms, None);
        let value = |key: &str| of_vm.value(key).unwrap_or_default();
        assert_eq!((value("limit"), value("weight")), ("500 iops (policy gold)".into(), "300".into()));
        assert_eq!(value("reservation"), "none (policy gold)");
        assert!(value("net.limit").contains("bit/s"), "{}", value("net.limit"));
        let of_nic = keys().with_policies(&vms, Some("nic/n0"));
        assert_eq!(of_nic.value("limit"), Some(value("net.limit")));
        assert_eq!(keys().value("limit"), None, "it is not served");
    }

    #[test]
    fn unknown_fields_of_a_form_are_refused() {
        let read = serde_json::from_value::<Typed>(json!({ "limit": "1 iops", "lmit": "" }));
        assert!(read.unwrap_err().to_string().contains("lmit"));
    }

    #[test]
    fn a_target_has_its_paths() {
        let volume = Target::named("a b/root");
        assert_eq!(
            (volume.path(), volume.action(), volume.page()),
            ("/v1/volumes/a%20b/root".into(), "/change/a%20b/root".into(), "/vms/a%20b".into())
        );
    }
}
