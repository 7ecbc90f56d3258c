//! Payloads of handshake options, parsed with every length checked.
//!
//! A payload is in memory and bounded ([`super::handshake::OPTION_LEN_MAX`]). Each length field in it is compared with
//! the remaining length before it is used. An error is an [`OptionError`], which the server answers with an error reply
//! instead of closing the connection.

use super::wire::{BASE_ALLOCATION, STRING_LEN_MAX, info, u16_at, u32_at, u64_at};

/// The namespace of [`BASE_ALLOCATION`]; as a query it requests all contexts in it.
const BASE_WILDCARD: &[u8] = b"base:";

/// Why an option's payload is invalid. The text is sent to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// A length field points past the end, or a field is missing.
    #[error("The option is shorter than its length fields state")]
    Truncated,
    /// There are bytes after the last field.
    #[error("The option is longer than its length fields state")]
    TrailingBytes,
    /// A string is longer than the protocol allows.
    #[error("A string in the option is longer than {STRING_LEN_MAX} bytes")]
    StringTooLong,
    /// A name is not UTF-8.
    #[error("The export name is not valid UTF-8")]
    NotUtf8,
    /// A message of a gateway is of another version.
    #[error("The option is of another version of the program: both sides need the same")]
    OtherVersion,
}

/// Payload of `INFO` and `GO`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InfoRequest<'a> {
    /// The export's name; empty for the default export.
    pub export: &'a str,
    /// The canonical name is requested.
    pub name: bool,
    /// The description is requested.
    pub description: bool,
    /// The block sizes are requested, and will be respected.
    pub block_size: bool,
}

impl<'a> InfoRequest<'a> {
    /// Parses the payload. Unknown kinds of information are ignored, as the protocol requires.
    ///
    /// # Errors
    /// [`OptionError`], for the error reply.
    pub fn parse(payload: &'a [u8]) -> Result<InfoRequest<'a>, OptionError> {
        let mut fields = Fields(payload);
        let export = fields.name()?;
        let mut request = InfoRequest { export, name: false, description: false, block_size: false };
        for _ in 0..fields.u16()? {
            match fields.u16()? {
                info::NAME => request.name = true,
                info::DESCRIPTION => request.description = true,
                info::BLOCK_SIZE => request.block_size = true,
                _ => {}
            }
        }
        fields.end()?;
        Ok(request)
    }
}

/// Payload of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetaRequest<'a> {
    /// The export's name; empty for the default export.
    pub export: &'a str,
    /// There is no query: list all, or select none.
    pub no_query: bool,
    /// A query names `base:allocation`.
    pub base_allocation: bool,
    /// A query is `base:`, which stands for the whole namespace when listing.
    pub base_wildcard: bool,
}

impl<'a> MetaRequest<'a> {
    /// Parses the payload. Queries in other namespaces match nothing and are ignored.
    ///
    /// # Errors
    /// [`OptionError`], for the error reply.
    pub fn parse(payload: &'a [u8]) -> Result<MetaRequest<'a>, OptionError> {
        let mut fields = Fields(payload);
        let export = fields.name()?;
        let queries = fields.u32()?;
        let mut request = MetaRequest { export, no_query: queries == 0, base_allocation: false, base_wildcard: false };
        // A wrong count cannot make the loop long: each query takes four bytes of a bounded payload.
        for _ in 0..queries {
            let query = fields.string()?;
            request.base_allocation |= query == BASE_ALLOCATION.as_bytes();
            request.base_wildcard |= query == BASE_WILDCARD;
        }
        fields.end()?;
        Ok(request)
    }
}

/// Parses the payload of `EXPORT_NAME`, which is only the name.
///
/// # Errors
/// [`OptionError::StringTooLong`], [`OptionError::NotUtf8`].
pub fn export_name(payload: &[u8]) -> Result<&str, OptionError> {
    if payload.len() > STRING_LEN_MAX {
        return Err(OptionError::StringTooLong);
    }
    str::from_utf8(payload).map_err(|_| OptionError::NotUtf8)
}

/// Appends a string with its length.
pub(super) fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u32).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// The bytes that have not been parsed yet.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn take(&mut self, len_bytes: usize) -> Result<&'a [u8], OptionError> {
        let (head, rest) = self.0.split_at_checked(len_bytes).ok_or(OptionError::Truncated)?;
        self.0 = rest;
        Ok(head)
    }

    pub(super) fn u16(&mut self) -> Result<u16, OptionError> {
        Ok(u16_at(self.take(2)?, 0))
    }

    fn u32(&mut self) -> Result<u32, OptionError> {
        Ok(u32_at(self.take(4)?, 0))
    }

    pub(super) fn u64(&mut self) -> Result<u64, OptionError> {
        Ok(u64_at(self.take(8)?, 0))
    }

    fn string(&mut self) -> Result<&'a [u8], OptionError> {
        let len_bytes = self.u32()? as usize;
        let bytes = self.take(len_bytes)?;
        if len_bytes > STRING_LEN_MAX { Err(OptionError::StringTooLong) } else { Ok(bytes) }
    }

    pub(super) fn name(&mut self) -> Result<&'a str, OptionError> {
        str::from_utf8(self.string()?).map_err(|_| OptionError::NotUtf8)
    }

    pub(super) fn end(self) -> Result<(), OptionError> {
        if self.0.is_empty() { Ok(()) } else { Err(OptionError::TrailingBytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn string(text: &str) -> Vec<u8> {
        [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
    }

    #[test]
    fn info_request() {
        let payload = [string("disk"), vec![0, 3, 0, 3, 0, 1, 0, 99]].concat();
        let wanted = InfoRequest { export: "disk", name: true, description: false, block_size: true };
        assert_eq!(InfoRequest::parse(&payload), Ok(wanted));
        for len in 0..payload.len() {
            assert_eq!(InfoRequest::parse(&payload[..len]), Err(OptionError::Truncated), "{len} bytes");
        }
        let longer = [payload, vec![0]].concat();
        assert_eq!(InfoRequest::parse(&longer), Err(OptionError::TrailingBytes));
    }

    #[test]
    fn names_are_bounded_utf8() {
        let no_info = [0, 0];
        let at_limit = [string(&"x".repeat(4096)).as_slice(), &no_info].concat();
        assert!(InfoRequest::parse(&at_limit).is_ok());
        let above = [string(&"x".repeat(4097)).as_slice(), &no_info].concat();
        assert_eq!(InfoRequest::parse(&above), Err(OptionError::StringTooLong));
        assert_eq!(InfoRequest::parse(&[0, 0, 0, 1, 0xff, 0, 0]), Err(OptionError::NotUtf8));
        assert_eq!(InfoRequest::parse(&[0xff, 0xff, 0xff, 0xff, 0, 0]), Err(OptionError::Truncated));
        assert_eq!(export_name(&[0xc3]), Err(OptionError::NotUtf8));
        assert_eq!(export_name(&[b'x'; 4097]), Err(OptionError::StringTooLong));
        assert_eq!(export_name(b"disk"), Ok("disk"));
    }

    #[test]
    fn meta_request() {
        // queries, then (no_query, base_allocation, base_wildcard)
        type Case = (&'static [&'static str], (bool, bool, bool));
        let cases: [Case; 5] = [
            (&[], (true, false, false)),
            (&["base:allocation"], (false, true, false)),
            (&["base:", "base:allocation"], (false, true, true)),
            (&["qemu:dirty-bitmap:x", "base"], (false, false, false)),
            (&["", "base:allocations"], (false, false, false)),
        ];
        for (queries, (no_query, base_allocation, base_wildcard)) in cases {
            let mut payload = string("d");
            payload.extend_from_slice(&(queries.len() as u32).to_be_bytes());
            payload.extend(queries.iter().flat_map(|query| string(query)));
            let wanted = MetaRequest { export: "d", no_query, base_allocation, base_wildcard };
            assert_eq!(MetaRequest::parse(&payload), Ok(wanted), "{queries:?}");
            assert_eq!(MetaRequest::parse(&payload[..payload.len() - 1]), Err(OptionError::Truncated));
        }
        let huge_count = [string("d"), vec![0xff; 4]].concat();
        assert_eq!(MetaRequest::parse(&huge_count), Err(OptionError::Truncated));
    }
}
