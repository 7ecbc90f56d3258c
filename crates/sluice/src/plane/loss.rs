//! Writes that a failed sync may have lost: which volumes wait for an operator, and what it means to let them go on.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use sluice_config::changes::Target;
use sluice_io::device::{Edit, Store};
use sluice_io::nbd::export::Export;
use sluice_io::source::{Loss, Source};

use super::{Plane, PlaneError};

/// How long a disk may take to say what it has lost.
const HEAR_MAX: Duration = Duration::from_secs(5);

fn source(served: &(Store, Export)) -> Option<Arc<Source>> {
    match &served.0 {
        Store::Null => None,
        Store::File { source, .. } => Some(Arc::clone(source)),
    }
}

impl Plane {
    /// Why writes and flushes of a volume fail, if they do because of what a failed sync may have lost.
    #[must_use]
    pub(crate) fn loss(&self, vm: &str, volume: &str) -> Option<&'static str> {
        source(self.served.get(&(vm.to_owned(), volume.to_owned()))?)?.loss().reason()
    }

    /// Lets writes and flushes of the target's volumes go on where they fail because of what may have been lost. Returns
    /// whether there was any such volume.
    pub(crate) fn accept_loss(&self, target: &Target) -> Result<bool, PlaneError> {
        let volumes = self.host.vms[&target.vm].volumes.values();
        let named = volumes.filter(|volume| target.volume.as_ref().is_none_or(|name| *name == volume.name));
        let lost: Vec<_> = named.filter(|volume| self.loss(&target.vm, &volume.name).is_some()).collect();
        for volume in &lost {
            self.hear_of_loss(&target.vm, &volume.name)?;
        }
        for volume in &lost {
            let (vm, name, device) = (target.vm.clone(), volume.name.clone(), volume.device.clone());
            let accepted = self.devices[&device].device.edit(vec![Edit::AcceptLoss { vm, volume: name }]);
            accepted.map_err(|source| PlaneError::Edit { device, source })?;
        }
        Ok(!lost.is_empty())
    }

    /// Whoever has the file or disk of this volume open may yet be told of the loss that is being accepted. If it is that of a
    /// volume alone, nobody may: what he would be told is his own. A disk that hangs is given up after [`HEAR_MAX`].
    fn hear_of_loss(&self, vm: &str, volume: &str) -> Result<(), PlaneError> {
        let Some(lost) = self.served.get(&(vm.to_owned(), volume.to_owned())).and_then(source) else { return Ok(()) };
        if lost.loss() != Loss::OfFile {
            return Ok(());
        }
        let same = self.served.values().filter_map(source).filter(|other| other.id() == lost.id());
        let writers: Vec<Arc<Source>> = same.filter(|other| !other.is_read_only()).collect();
        let no_answer = || PlaneError::NoAnswer(PathBuf::from(lost.path()));
        let (heard, hearing) = channel();
        let thread = thread::Builder::new().name("loss".to_owned()).spawn(move || {
            writers.iter().for_each(|writer| writer.hear_of_loss());
            let _ = heard.send(());
        });
        thread.map_err(|_| no_answer())?;
        match hearing.recv_timeout(HEAR_MAX) {
            Err(RecvTimeoutError::Timeout) => Err(no_answer()),
            Ok(()) | Err(RecvTimeoutError::Disconnected) => Ok(()),
        }
    }
}
