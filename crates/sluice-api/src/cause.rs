//! Why a VM gets less, or waits longer, than it should.

use crate::words::words;

words! {
    /// The main cause.
    pub enum Cause {
        /// The VM's own limit, or that of its volume.
        OwnLimit = "own_limit",
        /// The VM's own limit of CPU time of the daemon.
        OwnCpuLimit = "own_cpu_limit",
        /// Its own requests queue behind each other, or it keeps too few outstanding.
        OwnQueue = "own_queue",
        /// The reservations of other VMs.
        OthersReservation = "others_reservation",
        /// The weights of other VMs.
        OthersWeight = "others_weight",
        /// Other hosts of the pool use the storage, or this host does not see what they use.
        Pool = "pool",
        /// A batch of adjacent requests of another VM.
        Batch = "batch",
        /// The scheduler left the device idle in expectation of a better request.
        Anticipation = "anticipation",
        /// The device is slow, stalled or down.
        Device = "device",
        /// The device thread of the daemon has no CPU time left.
        DaemonCpu = "daemon_cpu",
        /// The source of the volume is not the one that was last served.
        SourceChanged = "source_changed",
        /// The source of the volume, its socket or its device cannot be opened, or does not respond.
        SourceUnavailable = "source_unavailable",
        /// The interface of the uplink, or the TAP of the NIC, is missing, down or in use.
        Interface = "interface",
        /// What the client of the volume or NIC sends, or the memory that its VMM shares.
        Client = "client",
        /// The client of the volume or NIC has gone.
        ClientGone = "client_gone",
        /// The file system of the source has no space.
        NoSpace = "no_space",
        /// The disk or the file system of the source returns errors.
        Errors = "errors",
        /// A sync failed, so that writes may be lost, and writes fail until the loss is accepted.
        LostWrites = "lost_writes",
        /// The source is a file that has become shorter than the volume.
        SourceShortened = "source_shortened",
        /// The source is a block device that has become smaller than the volume.
        DeviceShrunk = "device_shrunk",
        /// The server of the source does not answer, or cannot be reached.
        ServerAway = "server_away",
        /// Another host has taken the image over, and the cluster has locked this host's connection out.
        TakenOver = "taken_over",
        /// Sparse images may still grow by more than is free on their file system.
        LowSpace = "low_space",
    }
    else Unknown = "unknown"
}

const CLIENT_GONE: &str = "Connect its client again: QEMU's NBD client does not do so by itself after a restart of the daemon, so detach and attach the disk \
     in the VMM, or restart the VM.";

const POOL: &str = "Look at which host uses the storage (`sluice describe DEVICE`, `sluice pool status MEETING`): lower the reservations or weights of \
     its VMs, limit them, or move one to other storage.";

const UNAVAILABLE: &str = "Look at the path of the source, its file system and the kernel log. The daemon tries again each second, and \
     serves the volume when it can be opened.";

const NO_SPACE: &str = "Free space on the file system of the source (of a thin volume, in its pool), extend it, or raise its quota. Then resume a VM that \
     QEMU has paused; a guest that has made its file system read-only must check it and mount it again.";

const SHRUNK: &str = "The device is smaller than the volume, and what was behind its end may be lost: give the device its size back (`lvextend`, its \
     partition table, or `losetup -c` after its file has been extended), and let the guest check its file system, or restore the data \
     from a backup. Until then requests past the end fail.";

const AWAY: &str = "Look at the server and at the way to it; the log says what was tried. The daemon connects again each second. Reads wait for it, \
    and after 30 s requests fail, unless the device has `resend = \"unsafe\"`.";
const TAKEN_OVER: &str = "Let the VM run on the host that has the image now. To bring the volume back here, detach it, attach it again, and take it over \
     with `sluice takeover VM/VOLUME`.";
const SHORTENED: &str = "Another program has cut the file, and what was behind the end is lost: find that program, and restore the data from a \
     backup. The daemon does not extend the file; `truncate -s` to the size of the volume does, with zeroes.";

impl Cause {
    /// In words, for people.
    #[must_use]
    pub const fn in_words(self) -> &'static str {
        match self {
            Cause::OwnLimit => "its own limit",
            Cause::OwnCpuLimit => "its own limit of CPU time",
            Cause::OwnQueue => "its own queue",
            Cause::OthersReservation => "reservations of other VMs",
            Cause::OthersWeight => "weights of other VMs",
            Cause::Pool => "other hosts of the pool",
            Cause::Batch => "a batch of another VM",
            Cause::Anticipation => "anticipation of the scheduler",
            Cause::Device => "the device",
            Cause::DaemonCpu => "CPU time of the daemon",
            Cause::SourceChanged => "its source is not the one that was served before",
            Cause::SourceUnavailable => "its source, socket or device cannot be opened or does not respond",
            Cause::Interface => "its interface is missing, down or in use",
            Cause::Client => "what its client sends, or the memory that its VMM shares",
            Cause::ClientGone => "its client has gone",
            Cause::NoSpace => "the file system of its source has no space",
            Cause::Errors => "errors of its disk or file system",
            Cause::LostWrites => "a sync failed, and writes may be lost",
            Cause::SourceShortened => "its source was cut",
            Cause::DeviceShrunk => "its device is smaller than the volume",
            Cause::ServerAway => "the server of its source is away",
            Cause::TakenOver => "another host has taken its image over",
            Cause::LowSpace => "sparse images may outgrow their file system",
            Cause::Unknown => "unknown to this version",
        }
    }

    /// In at most 14 characters, for a column of a terminal.
    #[must_use]
    pub const fn short(self) -> &'static str {
        match self {
            Cause::OwnLimit => "own limit",
            Cause::OwnCpuLimit => "own CPU limit",
            Cause::OwnQueue => "own queue",
            Cause::OthersReservation => "reservations",
            Cause::OthersWeight => "weights",
            Cause::Pool => "other hosts",
            Cause::Batch => "batch",
            Cause::Anticipation => "anticipation",
            Cause::Device => "device",
            Cause::DaemonCpu => "daemon CPU",
            Cause::SourceChanged => "source changed",
            Cause::SourceUnavailable => "source missing",
            Cause::Interface => "interface",
            Cause::Client => "client",
            Cause::ClientGone => "client gone",
            Cause::NoSpace => "no space",
            Cause::Errors => "errors",
            Cause::LostWrites => "lost writes",
            Cause::SourceShortened => "source cut",
            Cause::DeviceShrunk => "device shrunk",
            Cause::ServerAway => "server away",
            Cause::TakenOver => "taken over",
            Cause::LowSpace => "low space",
            Cause::Unknown => "unknown",
        }
    }

    /// A remedy, for people.
    #[must_use]
    pub const fn advice(self) -> &'static str {
        match self {
            Cause::OwnLimit => "Raise the limit of the VM or of its volume, or let the guest ask for less.",
            Cause::OwnCpuLimit => {
                "Raise `cpu_limit` of the VM or of its policy, or let the guest send fewer and larger requests or frames: most of \
                 the CPU time is for each of them and not for its bytes."
            }
            Cause::OwnQueue => {
                "The guest decides: a longer queue gives more throughput, a shorter one less latency. A limit below what \
                 the device gives does not shorten its queue."
            }
            Cause::OthersReservation => {
                "Give the VM a reservation, lower the reservations of its neighbours, or move one of them to another \
                 device."
            }
            Cause::OthersWeight => "Give the VM a reservation or a larger weight, or limit its neighbours.",
            Cause::Pool => POOL,
            Cause::Batch => "Make batches shorter (`batch` of the scheduler), or set it to 1.",
            Cause::Anticipation => {
                "Shorten or switch off the idle window of the scheduler; on an SSD it is never worth its time."
            }
            Cause::Device => {
                "Look at the device (`sluice doctor`, the kernel log). If it is healthy, lower the stated capacity to what \
                 it gives, and the reservations with it."
            }
            Cause::DaemonCpu => {
                "Give the device thread a CPU of its own, start the daemon at a higher priority (`Nice=` or `CPUWeight=` of its unit), \
                 or spread the volumes over several devices."
            }
            Cause::SourceChanged => {
                "Correct the host file or restore the source, and reload; or accept the new source with `sluice apply FILE --force \
                 VM/VOLUME`."
            }
            Cause::SourceUnavailable => UNAVAILABLE,
            Cause::Interface => {
                "Look at the interface (`ip link`, `sluice doctor`): make it, switch it on, or name another one in the host file. The \
                 daemon looks each second, and uses it when it is there."
            }
            Cause::Client => {
                "Look at the reason in `sluice events` and at the guest's kernel log. If it is memory that the daemon was not given, make \
                 every memory backend of the VM share=on, and restart the VM."
            }
            Cause::ClientGone => CLIENT_GONE,
            Cause::NoSpace => NO_SPACE,
            Cause::Errors => {
                "Look at the kernel log and at the disk and the file system of the source. If the disk is failing, move the volume \
                 while its data can be read."
            }
            Cause::LostWrites => {
                "Look at the kernel log and at the disk. When it is healthy, let the guest check its file system, and accept the loss \
                 with `sluice accept-loss VM/VOLUME`; until then writes and flushes fail."
            }
            Cause::LowSpace => "Free space, extend the file system, or allocate images (`fallocate -l SIZE IMAGE`).",
            Cause::Unknown => "Use `sluice` of the daemon's version.",
            Cause::SourceShortened => SHORTENED,
            Cause::DeviceShrunk => SHRUNK,
            Cause::ServerAway => AWAY,
            Cause::TakenOver => TAKEN_OVER,
        }
    }
}
