//! Routes that read. Each resource is a line in [`routes`].

use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Path, Query};
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sluice_api::change::Overrides;
use sluice_api::event::Events;
use sluice_api::list::{Clients, History, Policies, Step};
use sluice_api::object::ObjectId;
use sluice_api::request::Request;
use sluice_api::status::{Device, Status, Vm};

use super::page::{Asked, Entry, Page};
use super::problem::{Failed, Kind};
use super::{Asking, Client, InVm};

type List = Result<Json<Page>, Failed>;
type One = Result<Json<Value>, Failed>;
pub(super) type Parameters<T> = Result<Query<T>, QueryRejection>;

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

/// The list of what `entries` finds in the status.
async fn list(client: &Client, asked: Parameters<Asked>, entries: impl FnOnce(&Status) -> Vec<Entry>) -> List {
    // A wrong parameter costs no status.
    let Query(asked) = asked?;
    let status: Status = client.get(Request::Status).await?;
    Ok(Json(asked.page(entries(&status))?))
}

/// The entry that `find` finds in the status.
async fn one(
    client: &Client,
    asked: Parameters<Asked>,
    name: String,
    find: impl FnOnce(&Status) -> Option<Value>,
) -> One {
    let Query(asked) = asked?;
    let status: Status = client.get(Request::Status).await?;
    let found = find(&status).ok_or_else(|| Kind::NotFound.with(format!("There is no {name}")))?;
    asked.of(found).map(Json)
}

async fn health(Extension(client): Asking) -> One {
    let names: sluice_api::list::Names = client.get(Request::Names).await?;
    Ok(Json(json!({ "ok": true, "version": env!("CARGO_PKG_VERSION"), "vms": names.vms.len() })))
}

async fn status(Extension(client): Asking, asked: Parameters<Asked>) -> One {
    let Query(asked) = asked?;
    let status: Value = client.get(Request::Status).await?;
    asked.of(status).map(Json)
}

async fn vms(Extension(client): Asking, asked: Parameters<Asked>) -> List {
    let entry = |vm: &Vm| (format!("{} {}", vm.vm, vm.device), value(vm));
    list(&client, asked, |status| status.vms.iter().map(entry).collect()).await
}

/// A VM on each of its devices.
async fn vm(Extension(client): Asking, Path(name): Path<String>, asked: Parameters<Asked>) -> List {
    let Query(asked) = asked?;
    let status: Status = client.get(Request::Status).await?;
    let own = status.vms.iter().filter(|vm| vm.vm == name);
    let entries: Vec<Entry> = own.map(|vm| (vm.device.clone(), value(vm))).collect();
    match entries.is_empty() {
        true => Err(Kind::NotFound.with(format!("There is no VM {name}")).into()),
        false => Ok(Json(asked.page(entries)?)),
    }
}

fn volumes_of(status: &Status, are_nics: bool) -> Vec<Entry> {
    let some = status.volumes().filter(|volume| volume.nic.is_some() == are_nics);
    some.map(|volume| (volume.id().to_string(), value(volume))).collect()
}

async fn volumes(Extension(client): Asking, asked: Parameters<Asked>) -> List {
    list(&client, asked, |status| volumes_of(status, false)).await
}

async fn nics(Extension(client): Asking, asked: Parameters<Asked>) -> List {
    list(&client, asked, |status| volumes_of(status, true)).await
}

fn volume_of(status: &Status, id: &ObjectId) -> Option<Value> {
    status.volumes().find(|volume| volume.id() == *id).map(value)
}

async fn volume(Extension(client): Asking, Path((vm, volume)): InVm, asked: Parameters<Asked>) -> One {
    let id = ObjectId::volume(&vm, &volume);
    one(&client, asked, format!("volume {id}"), |status| volume_of(status, &id)).await
}

async fn nic(Extension(client): Asking, Path((vm, nic)): InVm, asked: Parameters<Asked>) -> One {
    let id = ObjectId::nic(&vm, &nic);
    one(&client, asked, format!("NIC {id}"), |status| volume_of(status, &id)).await
}

fn devices_of(status: &Status, are_uplinks: bool) -> impl Iterator<Item = Entry> {
    let some = status.devices.iter().filter(move |device| device.rates.are_of_link() == are_uplinks);
    some.map(|device| (device.device.clone(), value(device)))
}

async fn devices(Extension(client): Asking, asked: Parameters<Asked>) -> List {
    list(&client, asked, |status| devices_of(status, false).collect()).await
}

async fn uplinks(Extension(client): Asking, asked: Parameters<Asked>) -> List {
    list(&client, asked, |status| devices_of(status, true).collect()).await
}

fn device_of(status: &Status, name: &str, is_uplink: bool) -> Option<Value> {
    devices_of(status, is_uplink).find(|(device, _)| device == name).map(|(_, device)| device)
}

async fn device(Extension(client): Asking, Path(name): Path<String>, asked: Parameters<Asked>) -> One {
    one(&client, asked, format!("device {name}"), |status| device_of(status, &name, false)).await
}

async fn uplink(Extension(client): Asking, Path(name): Path<String>, asked: Parameters<Asked>) -> One {
    one(&client, asked, format!("uplink {name}"), |status| device_of(status, &name, true)).await
}

/// The pools of storage that other hosts use too, by the devices that are parts of them.
async fn pools(Extension(client): Asking, asked: Parameters<Asked>) -> List {
    let entry = |device: &Device| {
        let mut pool = value(device.pool.as_ref()?);
        pool["device"] = device.device.clone().into();
        Some((device.device.clone(), pool))
    };
    list(&client, asked, |status| status.devices.iter().filter_map(entry).collect()).await
}

async fn policies(Extension(client): Asking, asked: Parameters<Asked>) -> List {
    let Query(asked) = asked?;
    let Policies { policies, .. } = client.get(Request::Policies).await?;
    let entry = |policy: &sluice_api::list::NamedPolicy| {
        (format!("{} {}", policy.policy_name, policy.device.as_deref().unwrap_or_default()), value(policy))
    };
    Ok(Json(asked.page(policies.iter().map(entry).collect())?))
}

async fn clients(Extension(client): Asking, asked: Parameters<Asked>) -> List {
    let Query(asked) = asked?;
    let Clients { clients, .. } = client.get(Request::Clients).await?;
    let entry = |(number, one): (usize, &sluice_api::list::Client)| {
        (format!("{}/{} {number:06}", one.vm, one.volume), value(one))
    };
    Ok(Json(asked.page(clients.iter().enumerate().map(entry).collect())?))
}

async fn overrides(Extension(client): Asking, asked: Parameters<Asked>) -> List {
    let Query(asked) = asked?;
    let Overrides { overrides } = client.get(Request::GetOverrides).await?;
    Ok(Json(asked.page(overrides.iter().map(|one| (one.name.clone(), value(one))).collect())?))
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

async fn events(Extension(client): Asking, which: Parameters<Which>) -> One {
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

async fn history_of_vm(Extension(client): Asking, Path(vm): Path<String>, when: Parameters<When>) -> One {
    past(&client, vm, None, when).await
}

async fn history_of_volume(Extension(client): Asking, Path((vm, volume)): InVm, when: Parameters<When>) -> One {
    past(&client, vm, Some(volume), when).await
}
