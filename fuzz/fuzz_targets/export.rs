//! Shared by the targets: an export, and a device with one VM that owns it.

use sluice_io::device::{Device, DeviceSpec, Edit, SchedulerSpec, Store, VolumeGeneration, VolumeSpec, Window};
use sluice_io::nbd::export::Export;
use sluice_io::nbd::handshake::{Exports, Listed};
use sluice_sched::{GateSettings, Policy, schedulers};

/// 1 MiB with every feature.
pub fn export() -> Export {
    let description = "a disk".to_owned();
    Export { description, block_maximum: 256 << 10, ..Export::with_all_features("vm/disk", 1 << 20) }
}

/// A list of that export.
pub struct Offer;

impl Exports for Offer {
    fn list(&self) -> Vec<Listed> {
        vec![Listed { name: export().name, description: export().description }]
    }

    fn find(&self, name: &str) -> Option<Export> {
        (name == export().name).then(export)
    }
}

/// Starts a device that stores nothing, with a small depth and a small window, and volume `disk` of VM `vm`.
pub fn device() -> Device {
    let scheduler = SchedulerSpec {
        descriptor: schedulers::find("mclock").expect("it is in the list"),
        facts: Default::default(),
        params: Default::default(),
    };
    let gate = GateSettings { depth: 4, ..GateSettings::default() };
    let spec = DeviceSpec { name: "fuzz".to_owned(), scheduler, gate, delay: None, delay_log: None };
    let device = Device::start(spec).expect("io_uring works here");
    let vm = "vm".to_owned();
    let window = Window { requests: 8, bytes: 1 << 20 };
    let (policy, store, generation) = (Policy::default(), Store::Null, VolumeGeneration::default());
    let volume = Box::new(VolumeSpec { name: "disk".to_owned(), generation, policy, store, export: export() });
    let edits = vec![Edit::AddVm { vm: vm.clone(), policy, window }, Edit::AddVolume { vm, volume }];
    device.edit(edits).expect("the first VM fits");
    device
}
