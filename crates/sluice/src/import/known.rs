//! What a reader knows of the properties of disks and NICs: elements and attributes of XML, options of a line.
//!
//! Each reader lists the properties that it converts, those without an effect here, and those that it cannot carry over. A
//! property that is not in the list, or has another value than those in it, is a warning: what the reader does not know may
//! change what the guest sees or what it is promised.

use super::ImportError;

/// What becomes of a property.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Meaning {
    /// It is converted, or has no effect here.
    Known,
    /// As `Known`, with everything inside the element.
    Whole,
    /// The text says what changes.
    Lost(&'static str),
    /// The disk or NIC cannot be served with it; the text says why.
    LeftOut(&'static str),
    /// Serving the disk without it would damage its data; the text says why.
    Damages(&'static str),
}

use Meaning::{Damages, Known, LeftOut, Lost, Whole};

/// A property: its path, the values for which this entry holds (none: all), and its meaning.
pub(crate) struct Property(&'static str, &'static [&'static str], Meaning);

pub(crate) const fn known(path: &'static str) -> Property {
    Property(path, &[], Known)
}

pub(crate) const fn harmless(path: &'static str, values: &'static [&'static str]) -> Property {
    Property(path, values, Known)
}

pub(crate) const fn whole(path: &'static str) -> Property {
    Property(path, &[], Whole)
}

pub(crate) const fn lost(path: &'static str, why: &'static str) -> Property {
    Property(path, &[], Lost(why))
}

pub(crate) const fn left_out(path: &'static str, why: &'static str) -> Property {
    Property(path, &[], LeftOut(why))
}

pub(crate) const fn damages(path: &'static str, why: &'static str) -> Property {
    Property(path, &[], Damages(why))
}

/// The properties of a disk or NIC, and what was found.
pub(crate) struct Check<'a> {
    /// `disk` or `NIC`, for messages.
    pub(crate) what: &'static str,
    pub(crate) name: &'a str,
    pub(crate) properties: &'static [Property],
    pub(crate) warnings: &'a mut Vec<String>,
    /// Whether it can be served.
    pub(crate) is_served: bool,
}

impl Check<'_> {
    /// Looks a property up; `shown` is how the other system writes it. Returns whether to look inside it.
    pub(crate) fn property(&mut self, path: &str, value: &str, shown: &str) -> Result<bool, ImportError> {
        let is = |property: &&Property| property.0 == path && (property.1.is_empty() || property.1.contains(&value));
        let (name, what) = (self.name, self.what);
        match self.properties.iter().find(is).map(|property| property.2) {
            Some(Known) => return Ok(true),
            Some(Whole) => {}
            Some(Lost(why)) => self.warnings.push(format!("{name}: {shown}: {why}")),
            Some(LeftOut(why)) => {
                self.warnings.push(format!("{name}: {shown}: {why}; the {what} is left out"));
                self.is_served = false;
            }
            Some(Damages(why)) => return Err(refused(name, shown, why)),
            None => self.warnings.push(format!("{name}: {shown} has no counterpart; it is left out")),
        }
        Ok(false)
    }
}

/// Returns the error for a disk whose data would be damaged.
pub(crate) fn refused(disk: &str, shown: &str, why: &str) -> ImportError {
    ImportError::Refused { disk: disk.to_owned(), shown: shown.to_owned(), why: why.to_owned() }
}
