//! Volumes over vhost-user-blk, and the tests' front end for them.

use std::path::Path;

use sluice_client::vhost::{Client, ClientOptions};

use super::Place;

impl Place {
    /// Returns the table of a volume on `disk` with the socket `VM-VOLUME.sock`, with more lines.
    pub(crate) fn vhost_volume(&self, vm: &str, volume: &str, source: &Path, lines: &str) -> String {
        let socket = self.volume_socket(vm, volume);
        format!(
            "[vm.{vm}.volume.{volume}]\ndevice = \"disk\"\nsource = \"{}\"\n\
             export = {{ type = \"vhost-user-blk\", socket = \"{}\" }}\n{lines}\n",
            source.display(),
            socket.display()
        )
    }

    /// Connects a front end to a volume.
    #[track_caller]
    pub(crate) fn vhost(&self, vm: &str, volume: &str, options: &ClientOptions) -> Client {
        Client::connect(&self.volume_socket(vm, volume), options).unwrap()
    }
}
