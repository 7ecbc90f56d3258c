//! Base64 as in RFC 4648, section 4. It encodes a script of several lines as one line.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for digit in 0..4 {
            let index = bits >> (18 - 6 * digit) & 63;
            text.push(if digit <= group.len() { char::from(ALPHABET[index as usize]) } else { '=' });
        }
    }
    text
}

pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=').as_bytes();
    let mut bytes = Vec::new();
    for group in text.chunks(4) {
        let mut bits = 0_u32;
        for digit in 0..4 {
            let value = group.get(digit).map_or(Some(0), |byte| ALPHABET.iter().position(|known| known == byte))?;
            bits = bits << 6 | value as u32;
        }
        bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len().max(1)]);
    }
    Some(bytes)
}
