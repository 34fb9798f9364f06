//! Compact text encoding of bytes: PackBits run-length encoding, then base64 without padding.
//!
//! Forwarding tables are most of a plan. As JSON lists of numbers they would be four times as large.

/// The base64 alphabet, indexed by six bits.
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Shortest run that is encoded as a run instead of literally.
const RUN_MIN: usize = 3;

/// Largest number of bytes that one control byte covers, in a run or literally.
const STRETCH_MAX: usize = 128;

/// The text is not a valid encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnpackError {
    #[error("character {offset} of the packed text is not in the base64 alphabet")]
    InvalidCharacter {
        /// Byte offset in the text.
        offset: usize,
    },
    /// The text ends in the middle of a base64 group, a run or a literal.
    #[error("the packed text is truncated")]
    Truncated,
    #[error("the packed text holds more than {max} bytes")]
    TooLong { max: usize },
}

/// Encodes bytes as text, the inverse of [`unpack`].
pub(crate) fn pack(bytes: &[u8]) -> String {
    let encoded = encode_runs(bytes);
    let mut text = String::with_capacity(encoded.len().div_ceil(3) * 4);
    for chunk in encoded.chunks(3) {
        let word =
            chunk.iter().enumerate().fold(0, |word, (at, byte)| word | u32::from(*byte) << (16 - 8 * at));
        for letter in 0..=chunk.len() {
            text.push(LETTERS[(word >> (18 - 6 * letter) & 0x3f) as usize].into());
        }
    }
    text
}

/// Decodes a text of [`pack`] that holds at most `max` bytes.
pub(crate) fn unpack(text: &str, max: usize) -> Result<Vec<u8>, UnpackError> {
    decode_runs(&decode_base64(text)?, max)
}

fn decode_base64(text: &str) -> Result<Vec<u8>, UnpackError> {
    const MEANINGS: [u8; 256] = meanings();
    let letters = text.as_bytes();
    let mut bytes = Vec::with_capacity(letters.len() / 4 * 3 + 2);
    for (index, chunk) in letters.chunks(4).enumerate() {
        let mut word = 0;
        for (position, letter) in chunk.iter().enumerate() {
            match MEANINGS[usize::from(*letter)] {
                0xff => return Err(UnpackError::InvalidCharacter { offset: index * 4 + position }),
                bits => word |= u32::from(bits) << (18 - 6 * position),
            }
        }
        if chunk.len() == 1 {
            return Err(UnpackError::Truncated);
        }
        bytes.extend_from_slice(&word.to_be_bytes()[1..chunk.len()]);
    }
    Ok(bytes)
}

const fn meanings() -> [u8; 256] {
    let mut meanings = [0xff; 256];
    let mut bits = 0;
    while bits < LETTERS.len() {
        meanings[LETTERS[bits] as usize] = bits as u8;
        bits += 1;
    }
    meanings
}

/// A control byte `c` below 128 is followed by `c + 1` literal bytes; one above 128 by a single byte that is repeated
/// `257 - c` times.
fn encode_runs(bytes: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(bytes.len());
    let mut stretch = 0;
    let mut here = 0;
    while here < bytes.len() {
        let run = bytes[here..].iter().take(STRETCH_MAX).take_while(|byte| **byte == bytes[here]).count();
        if run < RUN_MIN {
            here += run;
            continue;
        }
        push_literal(&mut encoded, &bytes[stretch..here]);
        encoded.extend_from_slice(&[(257 - run) as u8, bytes[here]]);
        here += run;
        stretch = here;
    }
    push_literal(&mut encoded, &bytes[stretch..]);
    encoded
}

fn push_literal(encoded: &mut Vec<u8>, bytes: &[u8]) {
    for stretch in bytes.chunks(STRETCH_MAX) {
        encoded.push((stretch.len() - 1) as u8);
        encoded.extend_from_slice(stretch);
    }
}

fn decode_runs(encoded: &[u8], max: usize) -> Result<Vec<u8>, UnpackError> {
    let mut bytes = Vec::new();
    let mut rest = encoded;
    while let Some((&control, behind)) = rest.split_first() {
        let count = usize::from(control);
        rest = if count < STRETCH_MAX {
            let (stretch, behind) = behind.split_at_checked(count + 1).ok_or(UnpackError::Truncated)?;
            bytes.extend_from_slice(stretch);
            behind
        } else {
            let (&byte, behind) = behind.split_first().ok_or(UnpackError::Truncated)?;
            bytes.resize(bytes.len() + (257 - count), byte);
            behind
        };
        if bytes.len() > max {
            return Err(UnpackError::TooLong { max });
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn runs_are_compressed_and_malformed_text_is_rejected() {
        assert_eq!(pack(&[]), "");
        assert!(pack(&[7; 49152]).len() < 49152 / 40);
        let ramp: Vec<u8> = (0..=255).collect();
        assert!(pack(&ramp).len() < 256 * 4 / 3 + 8);
        assert_eq!(unpack(&pack(&[7; 100]), 100), Ok(vec![7; 100]));
        assert_eq!(unpack(&pack(&[7; 100]), 99), Err(UnpackError::TooLong { max: 99 }));
        assert_eq!(unpack("AA=A", 9), Err(UnpackError::InvalidCharacter { offset: 2 }));
        assert_eq!(unpack("A", 9), Err(UnpackError::Truncated));
        assert_eq!(unpack("gA", 9), Err(UnpackError::Truncated));
    }

    proptest! {
        #[test]
        fn any_bytes_survive_a_round_trip(runs in prop::collection::vec((any::<u8>(), 1usize..300), 0..40)) {
            let bytes: Vec<u8> = runs.iter().flat_map(|(byte, n)| std::iter::repeat_n(*byte, n % 7 + n / 250 * 100)).collect();
            prop_assert_eq!(unpack(&pack(&bytes), bytes.len()), Ok(bytes));
        }

        #[test]
        fn any_text_is_decoded_within_the_limit_or_rejected(text in "[A-Za-z0-9+/=]{0,200}") {
            if let Ok(bytes) = unpack(&text, 1000) {
                prop_assert!(bytes.len() <= 1000);
            }
        }
    }
}
