//! All VMs: filtered, sorted, 50 a page. The address holds it all.

use std::cmp::Ordering;

use askama::Template;
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::routing::get;
use serde::{Deserialize, Serialize};
use sluice_api::list::NamedPolicy;
use sluice_api::status::State as Promised;
use sluice_api::top::{Top, Vm};

use super::{Frame, Page, Shown, show};
use crate::failure::Failure;
use crate::rows::{Row, word};
use crate::server::Shared;
use crate::text::{filters, part};

pub(super) const PAGE: Page = Page { nav: Some(("VMs", "/vms")), routes };

/// Number of VMs of a page.
const PAGE_LEN: usize = 50;
/// Maximum length of the text of a filter.
const TEXT_MAX: usize = 200;

fn routes() -> Router<Shared> {
    Router::new().route("/vms", get(vms))
}

/// Which VMs are shown, and in which order.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct View {
    /// Part of the name of a VM or volume.
    #[serde(skip_serializing_if = "String::is_empty")]
    text: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    state: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    device: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    policy: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    sort: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    reversed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    page: Option<usize>,
}

/// A column by which the table can be sorted.
#[derive(Clone, Copy)]
struct Column {
    name: &'static str,
    title: &'static str,
    is_number: bool,
    /// The order of its values as long as it is not reversed.
    order: &'static str,
    compare: fn(&Vm, &Vm) -> Ordering,
}

/// Orders of a column before it is reversed: texts begin with the first, figures with the largest.
const RISING: &str = "ascending";
const FALLING: &str = "descending";

const COLUMNS: [Column; 10] = [
    Column { name: "name", title: "VM", is_number: false, order: RISING, compare: |_, _| Ordering::Equal },
    Column {
        name: "device",
        title: "Device",
        is_number: false,
        order: RISING,
        compare: |a, b| a.device.cmp(&b.device),
    },
    Column {
        name: "promise",
        title: "Promise",
        is_number: false,
        order: RISING,
        compare: |a, b| rank(a).cmp(&rank(b)),
    },
    Column {
        name: "used",
        title: "Rate in its band",
        is_number: false,
        order: FALLING,
        compare: |a, b| used(b).total_cmp(&used(a)),
    },
    Column {
        name: "iops",
        title: "IOPS",
        is_number: true,
        order: FALLING,
        compare: |a, b| iops(b).total_cmp(&iops(a)),
    },
    Column {
        name: "bytes",
        title: "MiB/s",
        is_number: true,
        order: FALLING,
        compare: |a, b| bytes(b).total_cmp(&bytes(a)),
    },
    Column { name: "p99", title: "p99", is_number: true, order: FALLING, compare: |a, b| p99(b).total_cmp(&p99(a)) },
    Column {
        name: "outstanding",
        title: "Outstanding",
        is_number: true,
        order: FALLING,
        compare: |a, b| b.now.outstanding.cmp(&a.now.outstanding),
    },
    Column {
        name: "failed",
        title: "Failed",
        is_number: true,
        order: FALLING,
        compare: |a, b| b.failed_requests.cmp(&a.failed_requests),
    },
    Column { name: "held", title: "Held by", is_number: false, order: RISING, compare: |a, b| held(a).cmp(held(b)) },
];

fn rank(vm: &Vm) -> u8 {
    match vm.now.state.unwrap_or(Promised::None) {
        Promised::Broken => 0,
        Promised::Unknown => 1,
        Promised::Kept => 2,
        Promised::NotAsked => 3,
        Promised::None => 4,
    }
}

fn used(vm: &Vm) -> f64 {
    let of = vm.now.limit.iops.or(vm.now.reservation.iops);
    of.map_or(0.0, |of| iops(vm) / of.max(f64::MIN_POSITIVE))
}

fn iops(vm: &Vm) -> f64 {
    vm.now.rates.map_or(0.0, |rates| rates.iops)
}

fn bytes(vm: &Vm) -> f64 {
    vm.now.rates.map_or(0.0, |rates| rates.bytes_per_second)
}

fn p99(vm: &Vm) -> f64 {
    vm.now.rates.and_then(|rates| rates.p99_us).unwrap_or(-1.0)
}

fn held(vm: &Vm) -> &'static str {
    // Those that nothing holds come last.
    vm.held_by.map_or("~", |cause| cause.in_words())
}

#[derive(Template)]
#[template(path = "vms.html")]
struct Vms {
    frame: Frame,
    view: View,
    heads: Vec<Head>,
    rows: Vec<Row>,
    states: Vec<Choice>,
    devices: Vec<Choice>,
    policies: Vec<Choice>,
    found: usize,
    total: usize,
    first: usize,
    previous: Option<String>,
    next: Option<String>,
}

/// The head of a column.
struct Head {
    title: &'static str,
    href: String,
    /// `ascending` or `descending`; empty if the table is not sorted by it.
    sorted: &'static str,
    is_number: bool,
}

/// A choice of a filter.
struct Choice {
    value: String,
    text: String,
    is_chosen: bool,
}

impl View {
    /// Whether the parameters are those of this page.
    fn check(&self) -> Result<(), Failure> {
        if self.text.chars().count() > TEXT_MAX {
            return Err(Failure::invalid(format!("The text of a filter has at most {TEXT_MAX} characters.")));
        }
        let is_state = self.state.is_empty() || STATES.iter().any(|state| state.name() == self.state);
        let is_column = self.sort.is_empty() || COLUMNS.iter().any(|column| column.name == self.sort);
        match (is_state, is_column) {
            (true, true) => Ok(()),
            (false, _) => {
                let known = STATES.map(Promised::name).join(", ");
                Err(Failure::invalid(format!("state is {}; the states are {known}.", self.state)))
            }
            (_, false) => {
                let known = COLUMNS.map(|column| column.name).join(", ");
                Err(Failure::invalid(format!("sort is {}; the columns are {known}.", self.sort)))
            }
        }
    }

    fn column(&self) -> Column {
        let promise = COLUMNS[2];
        COLUMNS.into_iter().find(|column| column.name == self.sort).unwrap_or(promise)
    }

    /// The address of this view.
    fn href(&self) -> String {
        let Ok(serde_json::Value::Object(all)) = serde_json::to_value(self) else { return "/vms".to_owned() };
        let text = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let pairs: Vec<String> = all.iter().map(|(key, value)| format!("{key}={}", part(&text(value)))).collect();
        if pairs.is_empty() { "/vms".to_owned() } else { format!("/vms?{}", pairs.join("&")) }
    }

    fn head(&self, column: Column) -> Head {
        let is_sorted = self.column().name == column.name;
        let reversed = is_sorted && !self.reversed;
        let view = View { sort: column.name.to_owned(), reversed, page: None, ..self.clone() };
        let sorted = match (is_sorted, self.reversed, column.order) {
            (false, ..) => "",
            (true, false, order) => order,
            (true, true, RISING) => FALLING,
            (true, true, _) => RISING,
        };
        Head { title: column.title, href: view.href(), sorted, is_number: column.is_number }
    }

    /// The VMs that match, in order.
    fn choose<'a>(&self, top: &'a Top, policies: &[NamedPolicy]) -> Vec<&'a Vm> {
        let text = self.text.to_lowercase();
        let has = |name: &str| name.to_lowercase().contains(&text);
        let holds =
            |vm: &Vm| policies.iter().any(|policy| policy.policy_name == self.policy && policy.vms.contains(&vm.vm));
        let state = |vm: &Vm| vm.now.state.unwrap_or(Promised::None).name();
        let mut vms: Vec<&Vm> = top
            .vms
            .iter()
            .filter(|vm| text.is_empty() || has(&vm.vm) || vm.volumes.iter().any(|volume| has(&volume.volume)))
            .filter(|vm| self.state.is_empty() || state(vm) == self.state)
            .filter(|vm| self.device.is_empty() || vm.device == self.device)
            .filter(|vm| self.policy.is_empty() || holds(vm))
            .collect();
        let column = self.column();
        vms.sort_by(|one, other| {
            let order =
                (column.compare)(one, other).then_with(|| (&one.vm, &one.device).cmp(&(&other.vm, &other.device)));
            if self.reversed { order.reverse() } else { order }
        });
        vms
    }
}

const STATES: [Promised; 5] = [Promised::Broken, Promised::Kept, Promised::NotAsked, Promised::Unknown, Promised::None];

async fn vms(State(shared): State<Shared>, view: Result<Query<View>, QueryRejection>) -> Shown {
    let Query(view) = view?;
    view.check()?;
    let (top, policies) = tokio::try_join!(
        shared.daemon.top(),
        shared.daemon.list::<NamedPolicy>("/v1/policies?fields=policy_name,vms")
    )?;
    let chosen = view.choose(&top, &policies);
    let pages = chosen.len().div_ceil(PAGE_LEN).max(1);
    // VMs that have gone must not leave an empty page.
    let page = view.page.unwrap_or(1).clamp(1, pages);
    let first = (page - 1) * PAGE_LEN;
    let rows: Vec<Row> = chosen.iter().skip(first).take(PAGE_LEN).map(|vm| Row::of(vm, &top.devices)).collect();
    let at = |page: usize| View { page: Some(page), ..view.clone() }.href();
    let choice = |value: &str, text: &str, chosen: &str| Choice {
        value: value.to_owned(),
        text: text.to_owned(),
        is_chosen: value == chosen,
    };
    let names: Vec<String> = rows.iter().map(|row| part(&row.name)).collect();
    let frame = Frame {
        nav: "/vms",
        here: view.href(),
        stream: Some(format!("vms={}", names.join(","))),
        time: top.time,
        ..Frame::titled("VMs")
    };
    let mut policy_names: Vec<&str> = policies.iter().map(|policy| policy.policy_name.as_str()).collect();
    policy_names.sort_unstable();
    policy_names.dedup();
    show(&Vms {
        frame,
        heads: COLUMNS.iter().map(|column| view.head(*column)).collect(),
        states: STATES.iter().map(|state| choice(state.name(), state_text(*state), &view.state)).collect(),
        devices: top.devices.iter().map(|one| choice(&one.device, &one.device, &view.device)).collect(),
        policies: policy_names.iter().map(|name| choice(name, name, &view.policy)).collect(),
        found: chosen.len(),
        total: top.vms.len(),
        first,
        previous: (page > 1).then(|| at(page - 1)),
        next: (page < pages).then(|| at(page + 1)),
        rows,
        view,
    })
}

fn state_text(state: Promised) -> &'static str {
    match state {
        Promised::None => "without a promise",
        state => word(state),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_api::top::{Figures, Rates};

    fn vm(name: &str, iops: f64, state: Promised) -> Vm {
        let now = Figures { rates: Some(Rates { iops, ..Rates::default() }), state: Some(state), ..Figures::default() };
        Vm { vm: name.to_owned(), device: "ssd".to_owned(), now, ..Vm::default() }
    }

    fn chosen(view: &View) -> Vec<String> {
        let vms = vec![vm("b", 5.0, Promised::Kept), vm("a", 9.0, Promised::Kept), vm("C", 1.0, Promised::Broken)];
        let policy =
            NamedPolicy { policy_name: "gold".to_owned(), vms: vec!["b".to_owned()], ..NamedPolicy::default() };
        view.choose(&Top { vms, ..Top::default() }, &[policy]).into_iter().map(|vm| vm.vm.clone()).collect()
    }

    #[test]
    fn vms_are_filtered_and_sorted_broken_promises_first() {
        let view = View::default();
        assert_eq!(chosen(&view), ["C", "a", "b"]);
        assert_eq!(chosen(&View { sort: "iops".to_owned(), ..view.clone() }), ["a", "b", "C"]);
        assert_eq!(chosen(&View { sort: "iops".to_owned(), reversed: true, ..view.clone() }), ["C", "b", "a"]);
        assert_eq!(chosen(&View { text: "c".to_owned(), ..view.clone() }), ["C"]);
        assert_eq!(chosen(&View { state: "kept".to_owned(), ..view.clone() }), ["a", "b"]);
        assert_eq!(chosen(&View { policy: "gold".to_owned(), ..view.clone() }), ["b"]);
        assert!(chosen(&View { device: "hdd".to_owned(), ..view }).is_empty());
    }

    #[test]
    fn the_address_holds_the_view_and_is_checked() {
        let view = View { text: "a b&c".to_owned(), page: Some(2), reversed: true, ..View::default() };
        assert_eq!(view.href(), "/vms?page=2&reversed=true&text=a%20b%26c");
        assert!(view.check().is_ok() && View { state: "x".to_owned(), ..view.clone() }.check().is_err());
        let wrong = View { sort: "size".to_owned(), ..view }.check().unwrap_err();
        assert!(wrong.detail.contains("the columns are name, device"), "{wrong:?}");
    }

    #[test]
    fn a_head_states_the_order_and_leads_to_the_other_one() {
        let view = View { sort: "iops".to_owned(), ..View::default() };
        let (iops, name) = (view.head(COLUMNS[4]), view.head(COLUMNS[0]));
        assert_eq!((iops.sorted, iops.href.as_str()), ("descending", "/vms?reversed=true&sort=iops"));
        assert_eq!((name.sorted, name.href.as_str()), ("", "/vms?sort=name"));
        let used = View { sort: "used".to_owned(), ..View::default() };
        assert_eq!(used.head(COLUMNS[3]).sorted, "descending");
        assert_eq!(View { reversed: true, ..used }.head(COLUMNS[3]).sorted, "ascending");
    }
}
