//! Volumes over vhost-user-blk, and the front end of the tests on them.

use std::path::Path;

use sluice_client::vhost::{Client, ClientOptions};

use super::Place;

impl Place {
    /// A volume on `disk` with the socket `VM-VOLUME.sock`, with more lines of its table.
    pub(crate) fn vhost_volume(&self, vm: &str, volume: &str, source: &Path, lines: &str) -> String {
        let socket = self.volume_socket(vm, volume);
        format!(
            "[vm.{vm}.volume.{volume}]\ndevice = \"disk\"\nsource = \"{}\"\n\
             export = {{ type = \"vhost-user-blk\", socket = \"{}\" }}\n{lines}\n",
            source.display(),
            socket.display()
        )
    }

    /// A front end on a volume.
    #[track_caller]
    pub(crate) fn vhost(&self, vm: &str, volume: &str, options: &ClientOptions) -> Client {
        Client::connect(&self.volume_socket(vm, volume), options).unwrap()
    }
}
