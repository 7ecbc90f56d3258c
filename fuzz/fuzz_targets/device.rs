//! A device with one VM, which owns the shared export.

use sluice_io::device::{Device, DeviceSpec, Edit, SchedulerSpec, StoreSpec, VolumeGeneration, VolumeSpec, Window};
use sluice_sched::{GateSettings, Policy, schedulers};

use crate::sluice_fuzz_export::export;

/// Starts a device that stores nothing, with a small depth and a small window, and volume `disk` of VM `vm`.
pub fn device() -> Device {
    let scheduler = SchedulerSpec {
        descriptor: schedulers::find("mclock").expect("it is in the list"),
        info: Default::default(),
        params: Default::default(),
    };
    let gate = GateSettings { depth: 4, ..GateSettings::default() };
    let spec =
        DeviceSpec { name: "fuzz".to_owned(), scheduler, gate, aim: None, delay: None, model: None, delay_log: None };
    let device = Device::start(spec).expect("io_uring works here");
    let vm = "vm".to_owned();
    let window = Window { requests: 8, bytes: 1 << 20 };
    let (policy, store, generation) = (Policy::default(), StoreSpec::Null, VolumeGeneration::default());
    let volume = Box::new(VolumeSpec { name: "disk".to_owned(), generation, policy, store, info: export().info });
    let edits = vec![Edit::AddVm { vm: vm.clone(), policy, window }, Edit::AddVolume { vm, volume }];
    device.edit(edits).expect("the first VM fits");
    device
}
