//! What is read. Each resource is a line in [`routes`].

use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Path, Query};
use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;
use serde::Serialize;
use serde_json::{Value, json};
use sluice_api::change::Overrides;
use sluice_api::event::Events;
use sluice_api::list::{Clients, History, Policies, Step};
use sluice_api::request::Request;
use sluice_api::status::{Device, Status, Vm, Volume};

use super::Client;
use super::page::{Asked, Entry, Page};
use super::problem::{Kind, Problem};

/// What an entry of a list is made of.
type List = Result<Json<Page>, Problem>;
type One = Result<Json<Value>, Problem>;
pub(super) type Parameters<T> = Result<Query<T>, QueryRejection>;
/// How a volume's name in a status begins if it is a NIC.
const NIC: &str = "nic/";

pub(super) fn routes() -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/v1/status", get(status))
        .route("/v1/vms", get(vms))
        .route("/v1/vms/{vm}", get(vm))
        .route("/v1/volumes", get(volumes))
        .route("/v1/volumes/{vm}/{volume}", get(volume))
        .route("/v1/nics", get(nics))
        .route("/v1/nics/{vm}/{nic}", get(nic))
        .route("/v1/devices", get(devices))
        .route("/v1/devices/{device}", get(device))
        .route("/v1/uplinks", get(uplinks))
        .route("/v1/uplinks/{device}", get(uplink))
        .route("/v1/pools", get(pools))
        .route("/v1/policies", get(policies))
        .route("/v1/clients", get(clients))
        .route("/v1/overrides", get(overrides))
        .route("/v1/events", get(events))
        .route("/v1/history/{vm}", get(history_of_vm))
        .route("/v1/history/{vm}/{*volume}", get(history_of_volume))
}

fn value(of: &impl Serialize) -> Value {
    serde_json::to_value(of).expect("its keys are strings")
}

/// The entry with this name, or a problem that names it.
fn only(what: &str, name: &str, asked: Parameters<Asked>, found: Option<Value>) -> One {
    let found = found.ok_or_else(|| Kind::NotFound.with(format!("There is no {what} {name}")))?;
    asked?.0.of(found).map(Json)
}

async fn health(Extension(client): Extension<Client>) -> One {
    let names: sluice_api::list::Names = client.get(Request::Names).await?;
    Ok(Json(json!({ "ok": true, "version": env!("CARGO_PKG_VERSION"), "vms": names.vms.len() })))
}

async fn status(Extension(client): Extension<Client>, asked: Parameters<Asked>) -> One {
    let status: Value = client.get(Request::Status).await?;
    asked?.0.of(status).map(Json)
}

async fn vms(Extension(client): Extension<Client>, asked: Parameters<Asked>) -> List {
    let status: Status = client.get(Request::Status).await?;
    let entry = |vm: &Vm| (format!("{} {}", vm.vm, vm.device), value(vm));
    Ok(Json(asked?.page(status.vms.iter().map(entry).collect())?))
}

/// A VM on each of its devices.
async fn vm(Extension(client): Extension<Client>, Path(name): Path<String>, asked: Parameters<Asked>) -> List {
    let status: Status = client.get(Request::Status).await?;
    let own = status.vms.iter().filter(|vm| vm.vm == name);
    let entries: Vec<Entry> = own.map(|vm| (vm.device.clone(), value(vm))).collect();
    match entries.is_empty() {
        true => Err(Kind::NotFound.with(format!("There is no VM {name}"))),
        false => Ok(Json(asked?.page(entries)?)),
    }
}

async fn volumes_or_nics(client: &Client, asked: Parameters<Asked>, are_nics: bool) -> List {
    let status: Status = client.get(Request::Status).await?;
    let some = status.volumes().filter(|volume| volume.volume.starts_with(NIC) == are_nics);
    let entry = |volume: &Volume| (format!("{}/{}", volume.vm, volume.volume), value(volume));
    Ok(Json(asked?.page(some.map(entry).collect())?))
}

async fn volumes(Extension(client): Extension<Client>, asked: Parameters<Asked>) -> List {
    volumes_or_nics(&client, asked, false).await
}

async fn nics(Extension(client): Extension<Client>, asked: Parameters<Asked>) -> List {
    volumes_or_nics(&client, asked, true).await
}

async fn one_of_vm(client: &Client, what: &str, vm: &str, volume: &str, asked: Parameters<Asked>) -> One {
    let status: Status = client.get(Request::Status).await?;
    let found = status.volumes().find(|one| one.vm == vm && one.volume == volume).map(value);
    only(what, &format!("{vm}/{volume}"), asked, found)
}

async fn volume(
    Extension(client): Extension<Client>,
    Path((vm, volume)): Path<(String, String)>,
    asked: Parameters<Asked>,
) -> One {
    one_of_vm(&client, "volume", &vm, &volume, asked).await
}

async fn nic(
    Extension(client): Extension<Client>,
    Path((vm, nic)): Path<(String, String)>,
    asked: Parameters<Asked>,
) -> One {
    one_of_vm(&client, "NIC", &vm, &format!("{NIC}{nic}"), asked).await
}

async fn devices_or_uplinks(client: &Client, asked: Parameters<Asked>, are_uplinks: bool) -> List {
    let status: Status = client.get(Request::Status).await?;
    let some = status.devices.iter().filter(|device| device.rates.are_of_link() == are_uplinks);
    let entry = |device: &Device| (device.device.clone(), value(device));
    Ok(Json(asked?.page(some.map(entry).collect())?))
}

async fn devices(Extension(client): Extension<Client>, asked: Parameters<Asked>) -> List {
    devices_or_uplinks(&client, asked, false).await
}

async fn uplinks(Extension(client): Extension<Client>, asked: Parameters<Asked>) -> List {
    devices_or_uplinks(&client, asked, true).await
}

async fn device_or_uplink(client: &Client, name: &str, asked: Parameters<Asked>, is_uplink: bool) -> One {
    let status: Status = client.get(Request::Status).await?;
    let is_it = |device: &&Device| device.device == name && device.rates.are_of_link() == is_uplink;
    only(if is_uplink { "uplink" } else { "device" }, name, asked, status.devices.iter().find(is_it).map(value))
}

async fn device(Extension(client): Extension<Client>, Path(name): Path<String>, asked: Parameters<Asked>) -> One {
    device_or_uplink(&client, &name, asked, false).await
}

async fn uplink(Extension(client): Extension<Client>, Path(name): Path<String>, asked: Parameters<Asked>) -> One {
    device_or_uplink(&client, &name, asked, true).await
}

/// The pools of storage that other hosts use too, by the devices that are parts of them.
async fn pools(Extension(client): Extension<Client>, asked: Parameters<Asked>) -> List {
    let status: Status = client.get(Request::Status).await?;
    let entry = |device: &Device| {
        let mut pool = value(device.pool.as_ref()?);
        pool["device"] = device.device.clone().into();
        Some((device.device.clone(), pool))
    };
    Ok(Json(asked?.page(status.devices.iter().filter_map(entry).collect())?))
}

async fn policies(Extension(client): Extension<Client>, asked: Parameters<Asked>) -> List {
    let Policies { policies, .. } = client.get(Request::Policies).await?;
    let entry = |policy: &sluice_api::list::NamedPolicy| {
        (format!("{} {}", policy.policy_name, policy.device.as_deref().unwrap_or_default()), value(policy))
    };
    Ok(Json(asked?.page(policies.iter().map(entry).collect())?))
}

async fn clients(Extension(client): Extension<Client>, asked: Parameters<Asked>) -> List {
    let Clients { clients, .. } = client.get(Request::Clients).await?;
    let entry = |(number, one): (usize, &sluice_api::list::Client)| {
        (format!("{}/{} {number:06}", one.vm, one.volume), value(one))
    };
    Ok(Json(asked?.page(clients.iter().enumerate().map(entry).collect())?))
}

async fn overrides(Extension(client): Extension<Client>, asked: Parameters<Asked>) -> List {
    let Overrides { overrides } = client.get(Request::GetOverrides).await?;
    Ok(Json(asked?.page(overrides.iter().map(|one| (one.name.clone(), value(one))).collect())?))
}

/// Which events are asked for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Which {
    /// Seconds since 1970.
    since: Option<u64>,
    until: Option<u64>,
    /// Number of the last event that is known already.
    after: Option<u64>,
    vm: Option<String>,
    device: Option<String>,
    kind: Option<String>,
    limit: Option<usize>,
}

async fn events(Extension(client): Extension<Client>, which: Parameters<Which>) -> One {
    let Query(Which { since, until, after, vm, device, kind, limit }) = which?;
    let events: Events = client.get(Request::Events { since, until, after, vm, device, kind, limit }).await?;
    Ok(Json(value(&events)))
}

/// Which part of the past is asked for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct When {
    /// Seconds since 1970.
    since: Option<u64>,
    until: Option<u64>,
    /// Length of the intervals.
    step: Option<Step>,
}

async fn past(client: &Client, vm: String, volume: Option<String>, when: Parameters<When>) -> One {
    let Query(When { since, until, step }) = when?;
    let past: History = client.get(Request::History { vm, volume, step, since, until }).await?;
    Ok(Json(value(&past)))
}

async fn history_of_vm(Extension(client): Extension<Client>, Path(vm): Path<String>, when: Parameters<When>) -> One {
    past(&client, vm, None, when).await
}

async fn history_of_volume(
    Extension(client): Extension<Client>,
    Path((vm, volume)): Path<(String, String)>,
    when: Parameters<When>,
) -> One {
    past(&client, vm, Some(volume), when).await
}
