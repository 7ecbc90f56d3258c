//! Errors over HTTP, as RFC 9457 has them: a document with a stable code, which programs compare, and words for people.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A request that has failed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Problem {
    /// The same as `code`, as a reference.
    #[serde(rename = "type")]
    pub reference: String,
    pub title: String,
    /// Of HTTP.
    pub status: u16,
    /// Name of its [`Kind`].
    pub code: String,
    /// What is wrong, and what to change.
    pub detail: String,
    /// What is wrong in the body or in a host file, one by one, if it is known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<Fault>,
    /// The same for a terminal, with the lines of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// One thing that is wrong.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Fault {
    pub detail: String,
    /// The remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The key of the body that is wrong, as a JSON pointer (RFC 6901).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pointer: Option<String>,
    /// The file that is wrong, with line and column from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
}

/// Defines [`Kind`] from the list: variant, HTTP status, code, what has happened.
macro_rules! kinds {
    ($($kind:ident $status:literal $code:literal $title:literal)+) => {
        /// Kinds of errors.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Kind { $($kind),+ }

        impl Kind {
            pub const ALL: [Kind; [$($code),+].len()] = [$(Kind::$kind),+];

            /// Status of HTTP, code, and what has happened.
            #[must_use]
            pub const fn parts(self) -> (u16, &'static str, &'static str) {
                match self { $(Kind::$kind => ($status, $code, $title)),+ }
            }
        }
    };
}

kinds! {
    Invalid 400 "invalid" "The request is not valid, or no host file could contain it"
    Forbidden 403 "forbidden" "The role of the client does not allow it"
    NoSuchResource 404 "no-such-resource" "There is no such path"
    NotFound 404 "not-found" "The object does not exist"
    NotAllowed 405 "method-not-allowed" "The resource does not have this method"
    Exists 409 "exists" "The object exists already"
    Refused 409 "refused" "The change is not possible now; nothing has changed"
    InProgress 409 "in-progress" "The first request with this idempotency key has no answer yet"
    Changed 412 "changed" "The object has changed since it was read; nothing has changed by this request"
    TooLarge 413 "too-large" "The body is longer than 64 KiB"
    NoJson 415 "no-json" "The body is not stated to be JSON (`content-type: application/json`)"
    OtherRequest 422 "other-request" "The idempotency key was used for another request"
    Internal 500 "internal" "The daemon has an error"
    Exiting 503 "exiting" "The daemon is exiting"
    Incomplete 504 "incomplete" "The change was made, and a device has not confirmed its part"
}

impl Kind {
    /// An error of this kind.
    #[must_use]
    pub fn with(self, detail: impl Into<String>) -> Problem {
        let (status, code, title) = self.parts();
        let [title, code] = [title, code].map(str::to_owned);
        Problem {
            reference: format!("urn:sluicegate:error:{code}"),
            title,
            status,
            code,
            detail: detail.into(),
            errors: Vec::new(),
            text: None,
        }
    }
}

impl Problem {
    /// The same, about this key of the body.
    #[must_use]
    pub fn at(self, pointer: &str) -> Problem {
        let fault = Fault { detail: self.detail.clone(), pointer: Some(pointer.to_owned()), ..Fault::default() };
        Problem { errors: vec![fault], ..self }
    }

    /// The same, with what is wrong one by one.
    #[must_use]
    pub fn of(self, errors: Vec<Fault>) -> Problem {
        if errors.is_empty() {
            return self;
        }
        let detail = errors.iter().map(|fault| fault.detail.as_str()).collect::<Vec<_>>().join("; ");
        Problem { errors, text: Some(self.detail), detail, ..self }
    }

    /// Its kind; `None` for one of a newer daemon.
    #[must_use]
    pub fn kind(&self) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.parts().1 == self.code)
    }
}
