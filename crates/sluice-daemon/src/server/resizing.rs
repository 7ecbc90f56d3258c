//! Volumes that stay, with another size.

use std::cell::LazyCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sluice_api::object::ObjectId;
use sluice_io::source::{ExtentMap, Source, SourceError};

use super::change::Change;
use super::claims::Claims;
use super::kinds::{Job, Kind, Resource, ResourceKey};
use super::objects::stays;
use super::tolerance::Tolerance;
use super::{Extra, Guard, Server, ServerError};

/// A volume that stays, with another size.
#[derive(Clone)]
pub(super) struct Resizing {
    name: ObjectId,
    source: Arc<Source>,
    size: Option<u64>,
    /// Whether its file is extended.
    extends: bool,
    /// The volume that last served bytes which this one would get.
    owner: Option<String>,
}

/// A volume with another size: the range is locked, and its file extended. Dropping it undoes both.
pub(super) struct Resized {
    is: Arc<Source>,
    /// The source with its new size; `None` only while it is created.
    to_be: Option<Arc<Source>>,
    /// Previous length of its file, if it was extended. No client knows of the part that would be cut off.
    before_bytes: Option<u64>,
    pub(super) extents: Option<ExtentMap>,
}

impl Resized {
    pub(super) fn source(&self) -> Arc<Source> {
        Arc::clone(self.to_be.as_ref().expect("it was made"))
    }

    /// Keeps the lock and the length, because the new size is in force.
    pub(super) fn keep(mut self) {
        (self.to_be, self.before_bytes) = (None, None);
    }
}

impl Drop for Resized {
    fn drop(&mut self) {
        if let Some(to_be) = &self.to_be
            && let Err(error) = self.is.release_growth(to_be)
        {
            tracing::error!(
                error = crate::failure::chain(&error),
                "Cannot release the range lock past the end of a volume"
            );
        }
        if let Some(before) = self.before_bytes
            && let Err(error) = self.is.cut(before)
        {
            tracing::error!(path = %self.is.path().display(), %error, "Cannot truncate a file to its previous size");
        }
    }
}

impl Resizing {
    fn resize(&self) -> Result<Resized, SourceError> {
        self.source.check_path()?;
        if let Some(other) = &self.owner {
            return Err(SourceError::Claimed { path: self.path(), other: other.clone() });
        }
        let mut resized = Resized { is: Arc::clone(&self.source), to_be: None, before_bytes: None, extents: None };
        if let Some(bytes) = self.size.filter(|_| self.extends) {
            let before = self.source.extend(bytes)?;
            let grew = self.source.range().offset.saturating_add(bytes) > before;
            resized.before_bytes = grew.then_some(before);
        }
        let to_be = self.source.resized(self.size)?;
        resized.extents = to_be.extents().ok();
        resized.to_be = Some(Arc::new(to_be));
        Ok(resized)
    }
}

impl Resource for Resizing {
    fn key(&self) -> ResourceKey {
        ResourceKey::Resizing(self.name.clone())
    }

    fn path(&self) -> PathBuf {
        self.source.path().to_owned()
    }

    fn silent(&self, _path: &Path, seconds: u64) -> ServerError {
        ServerError::volume(&self.name, SourceError::Silent { path: self.path(), seconds })
    }
}

impl Kind for Resizing {
    type Open = Resized;

    fn needed(server: &Server, change: &Change, guard: &Guard<'_>) -> Result<Vec<(Tolerance, Self)>, ServerError> {
        let grows = |known: &_, volume: &_| stays(Some(known), volume) && known.size != volume.size;
        let resized = change.volumes().filter(|(_, known, volume)| known.is_some_and(|known| grows(known, volume)));
        let claims = LazyCell::new(|| Claims::of(&change.host, guard));
        let needed = resized.filter_map(|(name, _, volume)| {
            let source = Arc::clone(server.served.get(&name)?.0.source()?);
            let extends = matches!(&change.extra, Extra::Grow(grows) if *grows == name);
            let owner = volume.size.and_then(|size| claims.owner_of_growth(&name, &source, size));
            Some((Tolerance::Never, Resizing { name, source, size: volume.size, extends, owner }))
        });
        Ok(needed.collect())
    }

    fn is_met_by(&self, other: &Self) -> bool {
        self.size == other.size
    }

    fn open_all(all: Vec<(Tolerance, Self)>, job: &Job<'_>) -> Option<()> {
        job.open_each(all, |need| need.resize().map_err(|source| ServerError::volume(&need.name, source)))
    }
}
