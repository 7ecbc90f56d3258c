//! Routes that read what is so now. Each is a line in [`routes`].

use axum::Json;
use axum::extract::Extension;
use axum::http::header::{CONTENT_TYPE, ETAG};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};
use sluice_api::call::{OPEN_METRICS, PROMETHEUS};
use sluice_api::change::{HostFile, Keys, Override, Overrides, Takeover};
use sluice_api::list::{self, Clients, Metrics, NamedPolicy, Names, PartOfPool, Policies};
use sluice_api::object::ObjectId;
use sluice_api::request::{MetricsFormat, Request};
use sluice_api::status::{Details, Device, Status, Vm, Volume};
use sluice_api::summary::Summary;
use sluice_api::top::Top;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{Nothing, Path, Query};
use super::page::{Asked, Chosen, Entry, Page};
use super::{Asking, Client};
use crate::control::keys::version_of;
use crate::http;
use crate::http::problem::{Failed, Kind};

type List = Result<Json<Page<Value>>, Failed>;
type One = Result<Json<Value>, Failed>;

pub(super) fn routes() -> OpenApiRouter {
    OpenApiRouter::new()
        .routes(routes!(health))
        .routes(routes!(metrics))
        .routes(routes!(status))
        .routes(routes!(summary))
        .routes(routes!(names))
        .routes(routes!(top))
        .routes(routes!(host))
        .routes(routes!(vms))
        .routes(routes!(vm))
        .routes(routes!(keys_of_vm))
        .routes(routes!(volumes))
        .routes(routes!(volume))
        .routes(routes!(keys_of_volume))
        .routes(routes!(lock))
        .routes(routes!(nics))
        .routes(routes!(nic))
        .routes(routes!(keys_of_nic))
        .routes(routes!(devices))
        .routes(routes!(device))
        .routes(routes!(uplinks))
        .routes(routes!(uplink))
        .routes(routes!(pools))
        .routes(routes!(pool))
        .routes(routes!(policies))
        .routes(routes!(policy))
        .routes(routes!(keys_of_policy))
        .routes(routes!(clients))
        .routes(routes!(clients_of_volume))
        .routes(routes!(clients_of_nic))
        .routes(routes!(overrides))
        .routes(routes!(one_override))
}

fn not_found(what: impl core::fmt::Display) -> Failed {
    Kind::NotFound.with(format!("There is no {what}")).into()
}

/// The entry of this name, as it was asked for.
fn find<T: Serialize + ToSchema>(all: Vec<Entry<T>>, name: &str, what: &str, chosen: &Chosen) -> One {
    let found = all.into_iter().find(|(known, _)| known == name).ok_or_else(|| not_found(format!("{what} {name}")))?;
    chosen.of(&found.1).map(Json)
}

/// Whether the daemon answers
#[derive(Debug, Serialize, ToSchema)]
struct Answers {
    ok: bool,
    version: &'static str,
    /// Number of VMs.
    vms: usize,
}

/// Tell whether the daemon answers
#[utoipa::path(get, path = "/health", responses((status = 200, body = Answers)))]
async fn health(Extension(client): Asking, Query(Nothing {}): Query<Nothing>) -> Result<Json<Answers>, Failed> {
    let names: Names = client.get(Request::Names).await?;
    Ok(Json(Answers { ok: true, version: env!("CARGO_PKG_VERSION"), vms: names.vms.len() }))
}

/// Metrics in the text format of Prometheus, or as OpenMetrics if the header `Accept` asks for it
#[utoipa::path(get, path = "/metrics", responses((status = 200, content_type = "text/plain", body = String)))]
async fn metrics(
    Extension(client): Asking,
    Query(Nothing {}): Query<Nothing>,
    headers: HeaderMap,
) -> Result<Response, Failed> {
    let format = http::format_of(&headers);
    let kind = match format {
        MetricsFormat::OpenMetrics => OPEN_METRICS,
        MetricsFormat::Prometheus => PROMETHEUS,
    };
    let metrics: Metrics = client.get(Request::Metrics { format }).await?;
    Ok(([(CONTENT_TYPE, kind)], metrics.text.unwrap_or_default()).into_response())
}

/// Everything that is so now
#[utoipa::path(get, path = "/v1/status", params(Chosen), responses((status = 200, body = Status)))]
async fn status(Extension(client): Asking, Query(chosen): Query<Chosen>) -> One {
    let status: Status = client.get(Request::Status).await?;
    chosen.of(&status).map(Json)
}

/// Whether all is well: what is so now without the figures of each VM
#[utoipa::path(get, path = "/v1/summary", params(Chosen), responses((status = 200, body = Summary)))]
async fn summary(Extension(client): Asking, Query(chosen): Query<Chosen>) -> One {
    let status: Status = client.get(Request::Status).await?;
    chosen.of(&Summary::from(status)).map(Json)
}

/// Names of everything that is served
#[utoipa::path(get, path = "/v1/names", params(Chosen), responses((status = 200, body = Names)))]
async fn names(Extension(client): Asking, Query(chosen): Query<Chosen>) -> One {
    let names: Names = client.get(Request::Names).await?;
    chosen.of(&names).map(Json)
}

/// The current state in a compact form, for a display that asks every second
#[utoipa::path(get, path = "/v1/top", params(Chosen), responses((status = 200, body = Top)))]
async fn top(Extension(client): Asking, Query(chosen): Query<Chosen>) -> One {
    let top: Top = client.get(Request::Top).await?;
    chosen.of(&top).map(Json)
}

/// The host file in force, with drop-ins and the changes made at run time
#[utoipa::path(get, path = "/v1/host", params(Chosen), responses((status = 200, body = HostFile)))]
async fn host(Extension(client): Asking, Query(chosen): Query<Chosen>) -> One {
    let host: HostFile = client.get(Request::GetHost).await?;
    chosen.of(&host).map(Json)
}

/// VMs, an entry for each of their devices
#[utoipa::path(get, path = "/v1/vms", params(Asked), responses((status = 200, body = Page<Vm>)))]
async fn vms(Extension(client): Asking, Query(asked): Query<Asked>) -> List {
    let status: Status = client.get(Request::Status).await?;
    let entries = status.vms.into_iter().map(|vm| (format!("{} {}", vm.vm, vm.device), vm));
    asked.page(entries.collect()).map(Json)
}

/// A VM on each of its devices, with the times of its requests in the last minute
#[utoipa::path(get, path = "/v1/vms/{vm}", params(Asked), responses((status = 200, body = Page<Vm>)))]
async fn vm(Extension(client): Asking, Path(vm): Path<String>, Query(asked): Query<Asked>) -> List {
    let found: Details<Vm> = client.get(Request::Details { vm, volume: None }).await?;
    asked.page(found.objects.into_iter().map(|vm| (vm.device.clone(), vm)).collect()).map(Json)
}

/// The answer with the version of what it tells of.
fn versioned(version: &str, answer: &impl Serialize) -> Result<Response, Failed> {
    let tag =
        HeaderValue::from_str(&format!("\"{version}\"")).map_err(|error| Kind::Internal.with(error.to_string()))?;
    Ok(([(ETAG, tag)], Json(answer)).into_response())
}

async fn keys(client: &Client, target: String) -> Result<Response, Failed> {
    let keys: Keys = client.get(Request::Keys { target }).await?;
    versioned(&keys.version, &keys)
}

/// Keys of a VM in the host file in force, with their version for `If-Match`
#[utoipa::path(get, path = "/v1/vms/{vm}/keys", responses((status = 200, body = Keys)))]
async fn keys_of_vm(
    Extension(client): Asking,
    Path(vm): Path<String>,
    Query(Nothing {}): Query<Nothing>,
) -> Result<Response, Failed> {
    keys(&client, vm).await
}

/// Keys of a volume in the host file in force, with their version for `If-Match`
#[utoipa::path(get, path = "/v1/volumes/{vm}/{volume}/keys", responses((status = 200, body = Keys)))]
async fn keys_of_volume(
    Extension(client): Asking,
    Path((vm, volume)): Path<(String, String)>,
    Query(Nothing {}): Query<Nothing>,
) -> Result<Response, Failed> {
    keys(&client, format!("{vm}/{volume}")).await
}

/// Keys of a NIC in the host file in force, with their version for `If-Match`
#[utoipa::path(get, path = "/v1/nics/{vm}/{nic}/keys", responses((status = 200, body = Keys)))]
async fn keys_of_nic(
    Extension(client): Asking,
    Path((vm, nic)): Path<(String, String)>,
    Query(Nothing {}): Query<Nothing>,
) -> Result<Response, Failed> {
    keys(&client, format!("{vm}/nic/{nic}")).await
}

/// Keys of a named policy in the host file in force, with their version for `If-Match`
#[utoipa::path(get, path = "/v1/policies/{policy}/keys", responses((status = 200, body = Keys)))]
async fn keys_of_policy(
    Extension(client): Asking,
    Path(policy): Path<String>,
    Query(Nothing {}): Query<Nothing>,
) -> Result<Response, Failed> {
    keys(&client, format!("policy/{policy}")).await
}

fn volumes_of(status: Status, are_nics: bool) -> Vec<Entry<Volume>> {
    let all = status.vms.into_iter().flat_map(|vm| vm.volumes);
    all.filter(|volume| volume.nic.is_some() == are_nics).map(|volume| (volume.id().to_string(), volume)).collect()
}

/// Volumes
#[utoipa::path(get, path = "/v1/volumes", params(Asked), responses((status = 200, body = Page<Volume>)))]
async fn volumes(Extension(client): Asking, Query(asked): Query<Asked>) -> List {
    asked.page(volumes_of(client.get(Request::Status).await?, false)).map(Json)
}

/// NICs
#[utoipa::path(get, path = "/v1/nics", params(Asked), responses((status = 200, body = Page<Volume>)))]
async fn nics(Extension(client): Asking, Query(asked): Query<Asked>) -> List {
    asked.page(volumes_of(client.get(Request::Status).await?, true)).map(Json)
}

async fn one_volume(client: &Client, id: ObjectId, chosen: &Chosen) -> One {
    let (vm, volume) = id.parts();
    let request = Request::Details { vm: vm.to_owned(), volume: Some(volume.into_owned()) };
    let found: Details<Volume> = client.get(request).await?;
    chosen.of(found.objects.first().ok_or_else(|| not_found(&id))?).map(Json)
}

/// A volume, with the times of its requests in the last minute
#[utoipa::path(get, path = "/v1/volumes/{vm}/{volume}", params(Chosen), responses((status = 200, body = Volume)))]
async fn volume(
    Extension(client): Asking,
    Path((vm, volume)): Path<(String, String)>,
    Query(chosen): Query<Chosen>,
) -> One {
    one_volume(&client, ObjectId::volume(&vm, &volume), &chosen).await
}

/// A NIC, with the times of its frames in the last minute
#[utoipa::path(get, path = "/v1/nics/{vm}/{nic}", params(Chosen), responses((status = 200, body = Volume)))]
async fn nic(Extension(client): Asking, Path((vm, nic)): Path<(String, String)>, Query(chosen): Query<Chosen>) -> One {
    one_volume(&client, ObjectId::nic(&vm, &nic), &chosen).await
}

/// The client that has the lock of a volume's image
#[utoipa::path(get, path = "/v1/volumes/{vm}/{volume}/lock", responses((status = 200, body = Takeover)))]
async fn lock(
    Extension(client): Asking,
    Path((vm, volume)): Path<(String, String)>,
    Query(Nothing {}): Query<Nothing>,
) -> Result<Json<Takeover>, Failed> {
    client.get(Request::Takeover { target: format!("{vm}/{volume}"), from: None }).await.map(Json)
}

async fn devices_of(client: &Client, are_uplinks: bool) -> Result<Vec<Entry<Device>>, Failed> {
    let status: Status = client.get(Request::Status).await?;
    let some = status.devices.into_iter().filter(|device| device.rates.are_of_link() == are_uplinks);
    Ok(some.map(|device| (device.device.clone(), device)).collect())
}

/// Devices
#[utoipa::path(get, path = "/v1/devices", params(Asked), responses((status = 200, body = Page<Device>)))]
async fn devices(Extension(client): Asking, Query(asked): Query<Asked>) -> List {
    asked.page(devices_of(&client, false).await?).map(Json)
}

/// A device
#[utoipa::path(get, path = "/v1/devices/{device}", params(Chosen), responses((status = 200, body = Device)))]
async fn device(Extension(client): Asking, Path(name): Path<String>, Query(chosen): Query<Chosen>) -> One {
    find(devices_of(&client, false).await?, &name, "device", &chosen)
}

/// Uplinks
#[utoipa::path(get, path = "/v1/uplinks", params(Asked), responses((status = 200, body = Page<Device>)))]
async fn uplinks(Extension(client): Asking, Query(asked): Query<Asked>) -> List {
    asked.page(devices_of(&client, true).await?).map(Json)
}

/// An uplink
#[utoipa::path(get, path = "/v1/uplinks/{uplink}", params(Chosen), responses((status = 200, body = Device)))]
async fn uplink(Extension(client): Asking, Path(name): Path<String>, Query(chosen): Query<Chosen>) -> One {
    find(devices_of(&client, true).await?, &name, "uplink", &chosen)
}

async fn parts_of_pools(client: &Client) -> Result<Vec<Entry<PartOfPool>>, Failed> {
    let devices = devices_of(client, false).await?.into_iter();
    Ok(devices
        .filter_map(|(name, device)| Some((name.clone(), PartOfPool { device: name, pool: device.pool? })))
        .collect())
}

/// Storage that other hosts use too, by the devices that are parts of it
#[utoipa::path(get, path = "/v1/pools", params(Asked), responses((status = 200, body = Page<PartOfPool>)))]
async fn pools(Extension(client): Asking, Query(asked): Query<Asked>) -> List {
    asked.page(parts_of_pools(&client).await?).map(Json)
}

/// The pool that a device is a part of
#[utoipa::path(get, path = "/v1/pools/{device}", params(Chosen), responses((status = 200, body = PartOfPool)))]
async fn pool(Extension(client): Asking, Path(name): Path<String>, Query(chosen): Query<Chosen>) -> One {
    find(parts_of_pools(&client).await?, &name, "pool of device", &chosen)
}

async fn all_policies(client: &Client) -> Result<Vec<Entry<NamedPolicy>>, Failed> {
    let Policies { policies, .. } = client.get(Request::Policies).await?;
    let name =
        |policy: &NamedPolicy| format!("{} {}", policy.policy_name, policy.device.as_deref().unwrap_or_default());
    Ok(policies.into_iter().map(|policy| (name(&policy), policy)).collect())
}

/// Named policies, an entry for each device
#[utoipa::path(get, path = "/v1/policies", params(Asked), responses((status = 200, body = Page<NamedPolicy>)))]
async fn policies(Extension(client): Asking, Query(asked): Query<Asked>) -> List {
    asked.page(all_policies(&client).await?).map(Json)
}

/// A named policy on each device
#[utoipa::path(get, path = "/v1/policies/{policy}", params(Asked), responses((status = 200, body = Page<NamedPolicy>)))]
async fn policy(Extension(client): Asking, Path(name): Path<String>, Query(asked): Query<Asked>) -> List {
    let mut own = all_policies(&client).await?;
    own.retain(|(_, policy)| policy.policy_name == name);
    if own.is_empty() {
        return Err(not_found(format!("policy {name}")));
    }
    asked.page(own).map(Json)
}

/// Clients that are connected, and devices that have not told theirs
#[derive(Debug, Serialize, ToSchema)]
struct ClientPage {
    #[serde(flatten)]
    page: Page<list::Client>,
    silent_devices: Vec<String>,
}

async fn some_clients(client: &Client, asked: Asked, of: Option<(String, String)>) -> One {
    let Clients { clients, silent_devices, .. } = client.get(Request::Clients).await?;
    let is_meant = |one: &list::Client| of.as_ref().is_none_or(|(vm, volume)| one.vm == *vm && one.volume == *volume);
    let mut some: Vec<Entry<list::Client>> = Vec::new();
    for one in clients.into_iter().filter(is_meant) {
        let client = format!("{}/{} {} ", one.vm, one.volume, one.peer);
        // Connections of one process are not told apart.
        let same = some.iter().filter(|(known, _)| known.starts_with(&client)).count();
        some.push((format!("{client}{same:06}"), one));
    }
    let page = asked.page(some)?;
    let mut page = json!(page);
    page["silent_devices"] = json!(silent_devices);
    Ok(Json(page))
}

/// The connected clients
#[utoipa::path(get, path = "/v1/clients", params(Asked), responses((status = 200, body = ClientPage)))]
async fn clients(Extension(client): Asking, Query(asked): Query<Asked>) -> One {
    some_clients(&client, asked, None).await
}

/// The connected clients of a volume
#[utoipa::path(get, path = "/v1/clients/{vm}/{volume}", params(Asked), responses((status = 200, body = ClientPage)))]
async fn clients_of_volume(
    Extension(client): Asking,
    Path(of): Path<(String, String)>,
    Query(asked): Query<Asked>,
) -> One {
    some_clients(&client, asked, Some(of)).await
}

/// The connected clients of a NIC
#[utoipa::path(get, path = "/v1/clients/{vm}/nic/{nic}", params(Asked), responses((status = 200, body = ClientPage)))]
async fn clients_of_nic(
    Extension(client): Asking,
    Path((vm, nic)): Path<(String, String)>,
    Query(asked): Query<Asked>,
) -> One {
    some_clients(&client, asked, Some((vm, format!("nic/{nic}")))).await
}

async fn all_overrides(client: &Client) -> Result<Vec<Entry<Override>>, Failed> {
    let Overrides { overrides } = client.get(Request::GetOverrides).await?;
    // In the order in which they were made.
    let mut number = 0;
    let mut last = String::new();
    let entry = |one: Override| {
        number = if one.at == last { number + 1 } else { 0 };
        last.clone_from(&one.at);
        (format!("{} {number:06}", one.at), one)
    };
    Ok(overrides.into_iter().map(entry).collect())
}

/// Changes made at run time, in the order in which they were made
#[utoipa::path(get, path = "/v1/overrides", params(Asked), responses((status = 200, body = Page<Override>)))]
async fn overrides(Extension(client): Asking, Query(asked): Query<Asked>) -> List {
    asked.page(all_overrides(&client).await?).map(Json)
}

/// A change made at run time, by its name, which may have slashes, with its version for the `If-Match` of its reset
#[utoipa::path(get, path = "/v1/overrides/{*name}", params(("name" = String, Path), Chosen), responses((status = 200, body = Override)))]
async fn one_override(
    Extension(client): Asking,
    Path(name): Path<String>,
    Query(chosen): Query<Chosen>,
) -> Result<Response, Failed> {
    let mut named = client.get::<Overrides>(Request::GetOverrides).await?.overrides;
    named.retain(|one| one.name == name);
    // Of several with one name the last is in force.
    let last = named.last().ok_or_else(|| not_found(format!("change made at run time {name}")))?;
    versioned(&version_of(&named), &chosen.of(last)?)
}
