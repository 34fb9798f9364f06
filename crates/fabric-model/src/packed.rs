//! Bytes as text: runs are shortened, then every three bytes become four letters (base64 without padding).
//!
//! Forwarding tables are most of a plan. As lists of numbers they would take four times the place.

/// What one letter stands for, by six bits.
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Shortest run that is written as one.
const RUN_MIN: usize = 3;

/// Longest run or stretch that one control byte announces.
const STRETCH_MAX: usize = 128;

/// A text that does not stand for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnpackError {
    /// A letter that has no meaning.
    #[error("byte {at} of the text is none of A-Z, a-z, 0-9, + and /")]
    Letter {
        /// Where it stands.
        at: usize,
    },
    /// The text ends in the middle of something.
    #[error("the text is cut off")]
    CutOff,
    /// More bytes than there may be.
    #[error("more than {most} bytes")]
    TooLong {
        /// How many there may be.
        most: usize,
    },
}

/// Writes bytes.
pub(crate) fn pack(bytes: &[u8]) -> String {
    let short = shorten(bytes);
    let mut text = String::with_capacity(short.len().div_ceil(3) * 4);
    for chunk in short.chunks(3) {
        let word =
            chunk.iter().enumerate().fold(0, |word, (at, byte)| word | u32::from(*byte) << (16 - 8 * at));
        for letter in 0..=chunk.len() {
            text.push(LETTERS[(word >> (18 - 6 * letter) & 0x3f) as usize].into());
        }
    }
    text
}

/// Reads at most `most` bytes back.
pub(crate) fn unpack(text: &str, most: usize) -> Result<Vec<u8>, UnpackError> {
    lengthen(&bytes_of(text)?, most)
}

fn bytes_of(text: &str) -> Result<Vec<u8>, UnpackError> {
    const MEANINGS: [u8; 256] = meanings();
    let letters = text.as_bytes();
    let mut bytes = Vec::with_capacity(letters.len() / 4 * 3 + 2);
    for (index, chunk) in letters.chunks(4).enumerate() {
        let mut word = 0;
        for (place, letter) in chunk.iter().enumerate() {
            match MEANINGS[usize::from(*letter)] {
                0xff => return Err(UnpackError::Letter { at: index * 4 + place }),
                bits => word |= u32::from(bits) << (18 - 6 * place),
            }
        }
        if chunk.len() == 1 {
            return Err(UnpackError::CutOff);
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

/// A control byte below 128 announces one byte more than it says; one above announces `257 - control` times the byte
/// that follows.
fn shorten(bytes: &[u8]) -> Vec<u8> {
    let mut short = Vec::with_capacity(bytes.len());
    let mut stretch = 0;
    let mut here = 0;
    while here < bytes.len() {
        let run = bytes[here..].iter().take(STRETCH_MAX).take_while(|byte| **byte == bytes[here]).count();
        if run < RUN_MIN {
            here += run;
            continue;
        }
        literal(&mut short, &bytes[stretch..here]);
        short.extend_from_slice(&[(257 - run) as u8, bytes[here]]);
        here += run;
        stretch = here;
    }
    literal(&mut short, &bytes[stretch..]);
    short
}

fn literal(short: &mut Vec<u8>, bytes: &[u8]) {
    for stretch in bytes.chunks(STRETCH_MAX) {
        short.push((stretch.len() - 1) as u8);
        short.extend_from_slice(stretch);
    }
}

fn lengthen(short: &[u8], most: usize) -> Result<Vec<u8>, UnpackError> {
    let mut bytes = Vec::new();
    let mut rest = short;
    while let Some((&control, behind)) = rest.split_first() {
        let count = usize::from(control);
        rest = if count < STRETCH_MAX {
            let (stretch, behind) = behind.split_at_checked(count + 1).ok_or(UnpackError::CutOff)?;
            bytes.extend_from_slice(stretch);
            behind
        } else {
            let (&byte, behind) = behind.split_first().ok_or(UnpackError::CutOff)?;
            bytes.resize(bytes.len() + (257 - count), byte);
            behind
        };
        if bytes.len() > most {
            return Err(UnpackError::TooLong { most });
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn runs_are_short_and_limits_hold() {
        assert_eq!(pack(&[]), "");
        assert!(pack(&[7; 49152]).len() < 49152 / 40);
        let ramp: Vec<u8> = (0..=255).collect();
        assert!(pack(&ramp).len() < 256 * 4 / 3 + 8);
        assert_eq!(unpack(&pack(&[7; 100]), 100), Ok(vec![7; 100]));
        assert_eq!(unpack(&pack(&[7; 100]), 99), Err(UnpackError::TooLong { most: 99 }));
        assert_eq!(unpack("AA=A", 9), Err(UnpackError::Letter { at: 2 }));
        assert_eq!(unpack("A", 9), Err(UnpackError::CutOff));
        assert_eq!(unpack("gA", 9), Err(UnpackError::CutOff));
    }

    proptest! {
        #[test]
        fn bytes_read_back_as_written(runs in prop::collection::vec((any::<u8>(), 1usize..300), 0..40)) {
            let bytes: Vec<u8> = runs.iter().flat_map(|(byte, n)| std::iter::repeat_n(*byte, n % 7 + n / 250 * 100)).collect();
            prop_assert_eq!(unpack(&pack(&bytes), bytes.len()), Ok(bytes));
        }

        #[test]
        fn no_text_does_harm(text in "[A-Za-z0-9+/=]{0,200}") {
            if let Ok(bytes) = unpack(&text, 1000) {
                prop_assert!(bytes.len() <= 1000);
            }
        }
    }
}
