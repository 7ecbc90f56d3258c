//! Kinds of resources that a change opens before it is in force: everything that may hang with a disk or a file system.
//!
//! A kind is a file with a type that states what is needed ([`Kind`]), and a line in the list at the end of this file. A helper opens the
//! kinds in the order of the list. Tables of what is needed and what was found, hung paths, tolerance, and looks that make nothing follow
//! from the trait.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sluice_api::object::ObjectId;
use sluice_io::source::SourceError;

use super::change::Change;
use super::claims::Claims;
use super::found::Progress;
use super::tolerance::Tolerance;
use super::{Guard, Server, ServerError};

/// A resource that is needed.
pub(super) trait Resource {
    fn key(&self) -> ResourceKey;

    /// Returns the path that opening it accesses, as a helper reports it.
    fn path(&self) -> PathBuf;

    /// Returns the paths that it may be reported at.
    fn paths(&self) -> Vec<PathBuf> {
        vec![self.path()]
    }

    /// Returns the error if its path, or that with which it hangs, has not responded for this time.
    fn silent(&self, path: &Path, seconds: u64) -> ServerError;

    /// Whether it hangs as well if a helper hangs at `path`, which is that of another resource if that is known.
    fn hangs_with(&self, _other: Option<&ResourceKey>, _path: &Path) -> bool {
        false
    }

    /// Has it make nothing that outlasts the look.
    fn only_try(&mut self) {}
}

/// A kind of resource.
pub(super) trait Kind: Resource + Sized {
    /// What it is when it is open. Dropping it may hang.
    type Open;

    /// Returns what a change needs and what does not exist yet, with the faults that put each out of service.
    ///
    /// # Errors
    /// The change is rejected without a look at any path.
    fn needed(server: &Server, change: &Change, guard: &Guard<'_>) -> Result<Vec<(Tolerance, Self)>, ServerError>;

    /// Whether what was opened for `other`, which has the same key, meets this need.
    fn is_met_by(&self, other: &Self) -> bool {
        self.path() == other.path()
    }

    /// Opens all of them. Hangs as long as a path does. Returns `None` if nothing else is needed.
    fn open_all(all: Vec<(Tolerance, Self)>, job: &Job<'_>) -> Option<()>;
}

/// What a helper knows in addition to what is needed.
#[derive(Default)]
pub(super) struct Terms {
    /// Whether it is a start, which looks at everything even if something has failed.
    pub(super) is_start: bool,
    /// Maximum time that all volumes together wait for locks.
    pub(super) lock_wait: Duration,
    pub(super) claims: Claims,
    /// Volumes that stay out of service because they share a file: they are located, so that a retry of the other one sees them.
    pub(super) rivals: Vec<volume::Opening>,
}

/// The work of a helper.
pub(super) struct Job<'a> {
    pub(super) terms: &'a Terms,
    pub(super) progress: &'a Progress,
}

impl Job<'_> {
    /// Opens resources one after another. Returns `None` if nothing else is needed.
    pub(super) fn open_each<K: Listed>(
        &self,
        all: Vec<(Tolerance, K)>,
        open: impl Fn(&K) -> Result<K::Open, ServerError>,
    ) -> Option<()> {
        all.into_iter().try_for_each(|(tolerance, need)| {
            self.progress.set(&need.path());
            let opened = open(&need);
            self.add(tolerance, need, opened)
        })
    }

    /// Adds a result. Returns `None` if nothing else is needed: the helper was abandoned, or the change is rejected because of it.
    pub(super) fn add<K: Listed>(
        &self,
        tolerance: Tolerance,
        need: K,
        opened: Result<K::Open, ServerError>,
    ) -> Option<()> {
        let goes_on = self.terms.is_start || opened.as_ref().err().is_none_or(|error| tolerance.covers(error));
        let is_wanted = self.progress.add(|found| found.insert(need, opened));
        (is_wanted && goes_on).then_some(())
    }
}

/// Makes a panic at one source or disk an error of its volume or device: the others are served.
pub(super) fn caught<T>(path: &Path, call: impl FnOnce() -> Result<T, SourceError>) -> Result<T, SourceError> {
    let panicked = |_| Err(SourceError::Panicked { path: path.to_owned() });
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(panicked)
}

/// A kind of the list, by its place in the types that follow from it.
pub(super) trait Listed: Kind + 'static {
    fn into_need(self) -> Need;
    fn of(need: &Need) -> Option<&Self>;
    fn into_open(open: Self::Open) -> Open;
    fn opened(open: &Open) -> Option<&Self::Open>;
    fn from_open(open: Open) -> Option<Self::Open>;
}

macro_rules! kinds {
    ($($kind:ident($key:ty) = $file:ident::$need:ident of $object:literal,)+) => {
        $(use super::$file;)+

        /// Name of a resource. What is no object to a user has one too.
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
        pub(super) enum ResourceKey {
            $($kind($key),)+
        }

        impl fmt::Display for ResourceKey {
            /// Writes what it belongs to: `volume db1/root`.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(ResourceKey::$kind(key) => write!(f, concat!($object, " {}"), key),)+
                }
            }
        }

        /// A resource that must be opened.
        #[derive(Clone)]
        pub(super) enum Need {
            $($kind($file::$need),)+
        }

        /// An open resource.
        pub(super) enum Open {
            $($kind(<$file::$need as Kind>::Open),)+
        }

        $(impl Listed for $file::$need {
            fn into_need(self) -> Need {
                Need::$kind(self)
            }

            fn of(need: &Need) -> Option<&Self> {
                if let Need::$kind(need) = need { Some(need) } else { None }
            }

            fn into_open(open: Self::Open) -> Open {
                Open::$kind(open)
            }

            fn opened(open: &Open) -> Option<&Self::Open> {
                if let Open::$kind(open) = open { Some(open) } else { None }
            }

            fn from_open(open: Open) -> Option<Self::Open> {
                if let Open::$kind(open) = open { Some(open) } else { None }
            }
        })+

        impl Need {
            /// Returns what a change needs of every kind.
            pub(super) fn all(
                server: &Server,
                change: &Change,
                guard: &Guard<'_>,
            ) -> Result<Vec<(Tolerance, Need)>, ServerError> {
                let mut all = Vec::new();
                $(let needed = $file::$need::needed(server, change, guard)?;
                all.extend(needed.into_iter().map(|(tolerance, need)| (tolerance, need.into_need())));)+
                Ok(all)
            }

            /// Opens resources, kind by kind.
            pub(super) fn open_all(mut all: Vec<(Tolerance, Need)>, job: &Job<'_>) -> Option<()> {
                $(let of_kind = all.extract_if(.., |(_, need)| matches!(need, Need::$kind(_)));
                let of_kind = of_kind.filter_map(|(tolerance, need)| match need {
                    Need::$kind(need) => Some((tolerance, need)),
                    _ => None,
                });
                $file::$need::open_all(of_kind.collect(), job)?;)+
                Some(())
            }

            /// Whether what was opened for `other` meets this need.
            pub(super) fn is_met_by(&self, other: &Need) -> bool {
                match (self, other) {
                    $((Need::$kind(need), Need::$kind(other)) => need.is_met_by(other),)+
                    _ => false,
                }
            }
        }

        impl Deref for Need {
            type Target = dyn Resource;

            fn deref(&self) -> &Self::Target {
                match self {
                    $(Need::$kind(need) => need,)+
                }
            }
        }

        impl DerefMut for Need {
            fn deref_mut(&mut self) -> &mut Self::Target {
                match self {
                    $(Need::$kind(need) => need,)+
                }
            }
        }
    };
}

kinds! {
    Disk(String) = disk::Disk of "device",
    Log(String) = log::Log of "device",
    Meeting(String) = meeting::Meeting of "device",
    Resizing(ObjectId) = resizing::Resizing of "volume",
    Volume(ObjectId) = volume::Opening of "volume",
    Socket(String) = socket::Socket of "socket",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_at_one_source_kept_every_vm_from_its_disk() {
        let image = Path::new("/a.img");
        let found = caught::<()>(image, || panic!("a test requested this panic"));
        assert!(matches!(found, Err(SourceError::Panicked { path }) if path == image));
        assert!(caught(image, || Ok(())).is_ok());
    }
}
