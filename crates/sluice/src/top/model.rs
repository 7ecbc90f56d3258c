//! What the display has beside the reply of the daemon: names and details.

use sluice_api::status::{Details, Histograms, Vm, Volume};
use sluice_api::top::{Rates, Top};
use sluice_daemon::failure::Failure;

use crate::control::Request;
use crate::control::client::Daemon;
use crate::show::{Served, throughput};

/// What fails now, in sentences.
pub(crate) fn failing(top: &Top) -> impl Iterator<Item = String> {
    let volumes = top.vms.iter().flat_map(|vm| vm.volumes.iter().map(move |volume| (vm, volume)));
    volumes.flat_map(|(vm, volume)| {
        let name = format!("{}/{}", vm.vm, volume.volume);
        volume.failing.iter().map(move |one| format!("{name} is FAILING: {}", one.text))
    })
}

/// As people read it: MiB/s, or bits per second with the unit.
pub(crate) fn throughput_of(rates: &Rates) -> String {
    throughput(rates.bytes_per_second, rates.bits_per_second)
}

/// Object of the page with details: a VM or volume and its device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) device: String,
    pub(crate) vm: String,
    pub(crate) volume: Option<String>,
}

impl Name {
    /// As commands take it.
    pub(crate) fn target(&self) -> String {
        self.volume.as_ref().map_or_else(|| self.vm.clone(), |volume| format!("{}/{volume}", self.vm))
    }

    /// Asks the daemon for the details. `None` if it has gone.
    pub(crate) fn look(&self, daemon: &Daemon) -> Result<Option<Object>, Failure> {
        let request = Request::Details { vm: self.vm.clone(), volume: self.volume.clone() };
        Ok(if self.volume.is_none() {
            let vms: Details<Vm> = daemon.get(&request)?;
            vms.objects.into_iter().find(|vm| vm.device == self.device).map(|vm| Object::Vm(Box::new(vm)))
        } else {
            let volumes: Details<Volume> = daemon.get(&request)?;
            let found = volumes.objects.into_iter().find(|volume| volume.device == self.device);
            found.map(|volume| Object::Volume(Box::new(volume)))
        })
    }
}

/// What is shown in detail.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Object {
    Vm(Box<Vm>),
    Volume(Box<Volume>),
}

impl Object {
    pub(crate) fn served(&self) -> Served<'_> {
        match self {
            Object::Vm(vm) => Served::from(&**vm),
            Object::Volume(volume) => Served::from(&**volume),
        }
    }

    pub(crate) fn histograms(&self) -> Histograms {
        self.served().histograms.cloned().unwrap_or_default()
    }
}
