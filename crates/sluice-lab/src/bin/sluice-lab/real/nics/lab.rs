//! Network namespaces, the link and the server of a trial.
//!
//! Everything is removed when the lab is dropped, also after an error or a signal: the namespaces take their interfaces with them.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_client::net::traffic::{Echo, Probe};
use sluice_client::net::{self, Namespace, OUTSIDE};
use sluice_config::Host;
use sluice_lab::LabError;
use sluice_lab::device::DeviceFile;
use sluice_lab::real::nics::{LINK_MBIT, NicTrial, QUEUE_FRAMES, System};
use tokio::runtime::Handle;

use super::super::parsed;
use super::Plug;
use super::host;
use super::priority;
use super::relay::Relay;
use sluice_daemon::failure::Failure;
use sluice_daemon::server::Server;
use sluice_testbed::folder::{self, Folder};

/// Prefix of the temporary folder's name.
const PREFIX: &str = "sluice-nics-";
/// Port at which the outside answers.
const ECHO: u16 = 7;
/// Maximum time until stations reach the outside.
const REACH_MAX: Duration = Duration::from_secs(10);
/// Maximum time for frames on their way at the end.
const DRAIN_MAX: Duration = Duration::from_secs(1);
/// Bytes around a frame on the wire, which the queue counts too.
const AROUND: u32 = 24;

/// A running server with its stations. Dropped in this order.
pub(super) struct Lab {
    relays: Vec<Relay>,
    server: Option<Server>,
    pub(super) vms: Arc<[Namespace]>,
    pub(super) outside: Arc<Namespace>,
    switch: Arc<Namespace>,
    plug: Plug,
    tick_us: u64,
    folder: Folder,
}

impl Lab {
    /// Connects the VMs of a trial to the link.
    pub(super) async fn start(trial: &NicTrial, plug: Plug) -> Result<Lab, Failure> {
        let folder = Folder::new(PREFIX).map_err(folder::cannot)?;
        let (switch, outside) = (Namespace::new("switch")?, Namespace::new("outside")?);
        let vms: Arc<[Namespace]> = trial.vms.iter().map(|vm| Namespace::new(vm.name)).collect::<io::Result<_>>()?;
        make_link(&switch, &outside, trial.system)?;
        let tick_us = tick_us()?;
        let (switch, outside) = (Arc::new(switch), Arc::new(outside));
        let mut lab = Lab { relays: Vec::new(), server: None, vms, outside, switch, plug, tick_us, folder };
        lab.server = Some(Server::of(None));
        lab.apply(trial, 0).await?;
        lab.switch.ip(&format!("link set {} master br0 up", host::UPLINK))?;
        let (vms, switch, outside) = (Arc::clone(&lab.vms), Arc::clone(&lab.switch), Arc::clone(&lab.outside));
        let sockets = lab.folder.sockets().to_owned();
        lab.relays = blocking(move || connect(&vms, &switch, plug, &sockets)).await?;
        let vms = Arc::clone(&lab.vms);
        blocking(move || wait_for_stations(&vms, &outside)).await?;
        Ok(lab)
    }

    /// Puts the weights of a second into force, if they differ from those of the one before.
    pub(super) async fn set_weights(&mut self, trial: &NicTrial, second: usize) -> Result<(), Failure> {
        let differs = |second: usize| trial.vms.iter().any(|vm| vm.weight(second) != vm.weight(second - 1));
        if second > 0 && differs(second) { self.apply(trial, second).await } else { Ok(()) }
    }

    /// Applies the host file of a second in the namespace of the switch, where the server's interfaces are.
    async fn apply(&mut self, trial: &NicTrial, second: usize) -> Result<(), Failure> {
        let host: Arc<Host> = parsed(&host::text(trial, self.plug, self.tick_us, self.folder.sockets(), second))?;
        let mut server = self.server.take().expect("it is put back below");
        let (switch, runtime) = (Arc::clone(&self.switch), Handle::current());
        let inside = move || {
            let applied = switch.enter(|| {
                let _inside = runtime.enter();
                if second == 0 {
                    // The uplink's thread starts here, and inherits it.
                    priority::raise();
                }
                server.apply(&host).map(drop).map_err(Failure::from)
            });
            (server, applied)
        };
        let (server, applied): (Server, io::Result<Result<(), Failure>>) = blocking(inside).await;
        self.server = Some(server);
        applied?
    }

    /// Ends the front ends and the server.
    ///
    /// # Errors
    /// A front end had ended before.
    pub(super) async fn end(mut self) -> io::Result<()> {
        let ended = self.relays.drain(..).try_for_each(Relay::end);
        if let Some(server) = self.server.take() {
            let deadline = Instant::now() + DRAIN_MAX;
            server.drain(deadline).until(deadline).await;
        }
        ended
    }
}

/// Calls a function that waits for the server, whose connections this thread's runtime accepts.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

/// Gives each station its interface; returns the front ends over vhost-user-net.
fn connect(vms: &[Namespace], switch: &Namespace, plug: Plug, sockets: &Path) -> io::Result<Vec<Relay>> {
    let mut relays = Vec::new();
    for (number, vm) in vms.iter().enumerate() {
        match plug {
            Plug::Tap => switch.move_to(&host::tap(number), vm, "eth0")?,
            Plug::VhostUser => {
                relays.push(Relay::start(vm, &host::mac(number), &host::socket(sockets, number))?);
            }
        }
        vm.up("eth0", &format!("{}/24", net::address(number as u8 + 1)))?;
    }
    Ok(relays)
}

/// Waits until each station reaches the outside: then each knows the other's address, and no frame is flooded.
fn wait_for_stations(vms: &[Namespace], outside: &Namespace) -> io::Result<()> {
    let _echo = Echo::start(outside, ECHO)?;
    for (number, vm) in vms.iter().enumerate() {
        let mut probe = Probe::new(vm, net::outside(ECHO))?;
        let began = Instant::now();
        while !probe.ask().is_ok_and(|answer| answer.is_some()) {
            if began.elapsed() > REACH_MAX {
                return Err(io::Error::other(format!("station {} does not reach the outside", number + 1)));
            }
        }
    }
    keep_addresses(vms, outside)
}

/// Makes the stations keep one another's addresses: a later ARP request would be a frame of a VM that is to send none.
fn keep_addresses(vms: &[Namespace], outside: &Namespace) -> io::Result<()> {
    let shown = outside.ip("link show dev eth0")?;
    let of_outside = shown.split_whitespace().skip_while(|word| *word != "link/ether").nth(1).unwrap_or_default();
    for (number, vm) in vms.iter().enumerate() {
        vm.ip(&format!("neigh replace {OUTSIDE} lladdr {of_outside} dev eth0 nud permanent"))?;
        let (address, mac) = (net::address(number as u8 + 1), host::mac(number));
        outside.ip(&format!("neigh replace {address} lladdr {mac} dev eth0 nud permanent"))?;
    }
    Ok(())
}

/// Makes the bridge and the link to the outside; in the paper's system with the queue that drops its tail.
fn make_link(switch: &Namespace, outside: &Namespace, system: System) -> io::Result<()> {
    switch.connect("lan0", outside)?;
    switch.bridge("lan0")?;
    outside.up("eth0", &format!("{OUTSIDE}/24"))?;
    if system == System::Netback { drop_tail(switch, "lan0") } else { Ok(()) }
}

/// Gives an interface the rate of the link, and a queue in front of that.
fn drop_tail(switch: &Namespace, interface: &str) -> io::Result<()> {
    let rate = format!("rate {LINK_MBIT}mbit burst 16kb limit {} overhead {AROUND}", QUEUE_FRAMES * 1600);
    switch.run(&format!("tc qdisc add dev {interface} root handle 1: tbf {rate}"))?;
    let queue = format!("handle 10: pfifo limit {QUEUE_FRAMES}");
    switch.run(&format!("tc qdisc add dev {interface} parent 1:1 {queue}")).map(drop)
}

/// Returns the tick of the figures' driver domain.
fn tick_us() -> Result<u64, LabError> {
    let point = sluice_lab::band::BandPoint::NOMINAL;
    Ok(DeviceFile::load("netback-link")?.link(&point)?.tick_us)
}

/// Returns why the link of the paper's system cannot be made here.
pub(super) fn missing() -> Option<String> {
    let attempt = || {
        let (switch, outside) = (Namespace::new("try")?, Namespace::new("try")?);
        make_link(&switch, &outside, System::Netback)
    };
    attempt().err().map(|error| {
        format!(
            "the kernel cannot make a network namespace with a bridge and a token bucket ({error}); it needs veth, bridge, sch_tbf, and \
             a container the right to make them"
        )
    })
}
