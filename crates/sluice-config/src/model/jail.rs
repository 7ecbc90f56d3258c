//! How the daemon seals itself.

use serde::{Deserialize, Serialize};

/// A layer of the seal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Layer {
    /// No new privileges, no look into the process by its user, no core dumps.
    Privileges,
    /// Files of the folders of the host file alone.
    Landlock,
    /// The listed operations of io_uring alone.
    Rings,
    /// The listed system calls alone.
    Seccomp,
}

impl Layer {
    /// All layers, in the order in which they are put into force.
    pub const ALL: [Layer; 4] = [Layer::Privileges, Layer::Landlock, Layer::Rings, Layer::Seccomp];
    /// Their names in the host file.
    pub(crate) const NAMES: [&'static str; 4] = ["privileges", "landlock", "rings", "seccomp"];

    /// Returns the name in the host file.
    #[must_use]
    pub fn name(self) -> &'static str {
        Layer::NAMES[self as usize]
    }
}

/// `jail` of `[daemon]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Jail {
    /// All layers that the kernel has.
    #[default]
    Full,
    /// All layers, or no start.
    Required,
    /// All that the kernel has but these.
    Without(Vec<Layer>),
}

impl Jail {
    /// Whether a layer is wanted.
    #[must_use]
    pub fn wants(&self, layer: Layer) -> bool {
        !matches!(self, Jail::Without(left) if left.contains(&layer))
    }
}
