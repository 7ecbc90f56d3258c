//! Volumes that stay, with another size.

use std::cell::LazyCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sluice_api::object::ObjectId;
use sluice_io::ceph::CephError;
use sluice_io::device::{FileSpec, StoreSpec};
use sluice_io::source::rbd::Rbd;
use sluice_io::source::{Source, SourceError};

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
    source: Resizable,
    size: Option<u64>,
    /// Whether its file or image is extended.
    extends: bool,
    /// The volume that last served bytes which this one would get.
    owner: Option<String>,
}

/// A source that can have another size.
#[derive(Clone)]
enum Resizable {
    File(Arc<Source>),
    Image(Arc<Source<Rbd>>),
}

/// A volume with another size: what it gets is locked, and its file or image extended. Dropping it undoes both.
pub(super) struct Resized {
    store: StoreSpec,
    undo: Undo,
}

/// The undo of a change of size that does not come into force. It cuts a file where no client has seen bytes yet.
enum Undo {
    Nothing,
    /// The lock past the end; and the length, if the file was extended.
    File {
        is: Arc<Source>,
        to_be: Arc<Source>,
        before_bytes: Option<u64>,
    },
}

impl Resized {
    pub(super) fn store(&self) -> &StoreSpec {
        &self.store
    }

    /// Keeps the lock and the length, because the new size is in force.
    pub(super) fn keep(mut self) {
        self.undo = Undo::Nothing;
    }
}

impl Drop for Resized {
    fn drop(&mut self) {
        match &self.undo {
            Undo::Nothing => {}
            Undo::File { is, to_be, before_bytes } => undo_file(is, to_be, *before_bytes),
        }
    }
}

fn undo_file(is: &Source, to_be: &Source, before_bytes: Option<u64>) {
    if let Err(error) = is.release_growth(to_be) {
        tracing::error!(
            error = crate::failure::chain(&error),
            "Cannot release the range lock past the end of a volume"
        );
    }
    if let Some(before) = before_bytes
        && let Err(error) = is.cut(before)
    {
        tracing::error!(path = %is.path().display(), %error, "Cannot truncate a file to its previous size");
    }
}

impl Resizing {
    fn resize(&self) -> Result<Resized, SourceError> {
        match &self.source {
            Resizable::File(source) => self.resize_file(source),
            Resizable::Image(source) => self.resize_image(source),
        }
    }

    fn resize_file(&self, source: &Arc<Source>) -> Result<Resized, SourceError> {
        source.check_path()?;
        if let Some(other) = &self.owner {
            return Err(SourceError::Claimed { path: self.path(), other: other.clone() });
        }
        let mut before_bytes = None;
        if let Some(bytes) = self.size.filter(|_| self.extends) {
            let before = source.extend(bytes)?;
            before_bytes = (source.range().offset.saturating_add(bytes) > before).then_some(before);
        }
        let to_be = match source.resized(self.size) {
            Ok(to_be) => Arc::new(to_be),
            Err(error) => {
                if let Some(before) = before_bytes
                    && let Err(error) = source.cut(before)
                {
                    tracing::error!(path = %source.path().display(), %error, "Cannot truncate a file to its previous size");
                }
                return Err(error);
            }
        };
        let store = StoreSpec::File(FileSpec { source: Arc::clone(&to_be), extents: to_be.extents().ok() });
        Ok(Resized { store, undo: Undo::File { is: Arc::clone(source), to_be, before_bytes } })
    }

    fn resize_image(&self, source: &Arc<Source<Rbd>>) -> Result<Resized, SourceError> {
        let failed = |error: &CephError| SourceError::Remote { name: source.name().to_owned(), why: error.to_string() };
        // It is not cut again if the size does not come into force: another attempt may rely on it by then, and a longer image does no harm.
        if let Some(bytes) = self.size.filter(|_| self.extends) {
            source.kind().extend(bytes).map_err(|error| failed(&error))?;
        }
        let store = StoreSpec::Rbd(Arc::new(Rbd::resized(source, self.size)?));
        Ok(Resized { store, undo: Undo::Nothing })
    }
}

impl Resource for Resizing {
    fn key(&self) -> ResourceKey {
        ResourceKey::Resizing(self.name.clone())
    }

    fn path(&self) -> PathBuf {
        match &self.source {
            Resizable::File(source) => source.path().to_owned(),
            Resizable::Image(source) => source.name().into(),
        }
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
            let extends = matches!(&change.extra, Extra::Grow(grows) if *grows == name);
            let (source, owner) = match &server.served.get(&name)?.0 {
                StoreSpec::File(file) => {
                    let owner = volume.size.and_then(|size| claims.owner_of_growth(&name, &file.source, size));
                    (Resizable::File(Arc::clone(&file.source)), owner)
                }
                StoreSpec::Rbd(source) => (Resizable::Image(Arc::clone(source)), None),
                StoreSpec::Null | StoreSpec::Remote(_) => return None,
            };
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
