//! Bit fields and layouts. A layout is declared once, as a table of fields with their bit offsets and widths; decoding and
//! encoding are generated from the table.
//!
//! Bits are numbered as in the tables of the specification: bit 7 is the most significant bit of a byte, and numbers
//! are big-endian. The compiler checks every layout: fields do not overlap, end inside the layout, and fit their types.

use thiserror::Error;

/// Offset and width of a field in its layout, in bits from the most significant bit of byte 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    start_bit: usize,
    width_bits: usize,
}

/// A field of `count` whole bytes, from byte `first` on.
pub const fn bytes(first: usize, count: usize) -> Field {
    Field { start_bit: first * 8, width_bits: count * 8 }
}

/// A field inside one byte, bits `high` down to `low` (both included), as the specification writes `byte[high:low]`.
///
/// # Panics
///
/// If not `7 >= high >= low`; in a layout this fails the build.
pub const fn bits(byte: usize, high: usize, low: usize) -> Field {
    assert!(high <= 7 && low <= high, "bit numbers run from 7 down to 0");
    Field { start_bit: byte * 8 + (7 - high), width_bits: high - low + 1 }
}

/// A field that may cross byte borders: `width` bits, the most significant of them bit `high` of `byte`.
///
/// # Panics
///
/// If `high` is above 7; in a layout this fails the build.
pub const fn bits_from(byte: usize, high: usize, width: usize) -> Field {
    assert!(high <= 7, "bit numbers run from 7 down to 0");
    Field { start_bit: byte * 8 + (7 - high), width_bits: width }
}

impl Field {
    /// Index of the first byte that holds bits of the field.
    pub const fn first_byte(self) -> usize {
        self.start_bit / 8
    }

    /// One past the index of the last byte that holds bits of the field.
    pub const fn end_byte(self) -> usize {
        (self.start_bit + self.width_bits).div_ceil(8)
    }

    /// Width of the field in bits.
    pub const fn width(self) -> usize {
        self.width_bits
    }

    /// The same field of a layout that starts `bytes` bytes later.
    pub const fn moved_by(self, bytes: usize) -> Self {
        Self { start_bit: self.start_bit + bytes * 8, width_bits: self.width_bits }
    }

    /// The largest number that the field can hold; `u64::MAX` for fields of 64 bits and more.
    pub const fn max(self) -> u64 {
        if self.width_bits >= 64 { u64::MAX } else { (1 << self.width_bits) - 1 }
    }

    /// Reads the field as a big-endian number. The field has at most 64 bits and touches at most 8 bytes.
    ///
    /// # Panics
    ///
    /// If `raw` is shorter than [`Field::end_byte`].
    #[inline]
    pub fn get(self, raw: &[u8]) -> u64 {
        let mut number = 0u64;
        for byte in &raw[self.first_byte()..self.end_byte()] {
            number = number << 8 | u64::from(*byte);
        }
        let below = self.end_byte() * 8 - (self.start_bit + self.width_bits);
        (number >> below) & self.max()
    }

    /// Writes the field as a big-endian number; bits of `number` above the width are dropped, bits outside the field kept.
    ///
    /// # Panics
    ///
    /// If `raw` is shorter than [`Field::end_byte`].
    #[inline]
    pub fn put(self, raw: &mut [u8], number: u64) {
        let below = self.end_byte() * 8 - (self.start_bit + self.width_bits);
        let mut mask = self.max() << below;
        let mut number = (number << below) & mask;
        for byte in raw[self.first_byte()..self.end_byte()].iter_mut().rev() {
            *byte = (*byte & !(mask as u8)) | number as u8;
            mask = mask.checked_shr(8).unwrap_or(0);
            number = number.checked_shr(8).unwrap_or(0);
        }
    }
}

/// A type that a field of a layout can have.
///
/// The build fails if a field is narrower than [`WireValue::MIN_BITS`] or wider than [`WireValue::MAX_BITS`] of its type.
pub trait WireValue: Sized {
    /// Width of the narrowest field that can hold the type, in bits.
    const MIN_BITS: usize = 1;
    /// Width of the widest field that can hold the type, in bits.
    const MAX_BITS: usize = 64;

    /// Reads the field; `None` if its bits are not a valid value of this type.
    fn read(raw: &[u8], field: Field) -> Option<Self>;
    /// Writes the field and changes no bit outside it.
    fn write(&self, raw: &mut [u8], field: Field);
}

macro_rules! integer_wire_value {
    ($($ty:ty),*) => { $(
        impl WireValue for $ty {
            const MAX_BITS: usize = <$ty>::BITS as usize;
            #[inline]
            fn read(raw: &[u8], field: Field) -> Option<Self> {
                <$ty>::try_from(field.get(raw)).ok()
            }
            #[inline]
            fn write(&self, raw: &mut [u8], field: Field) {
                field.put(raw, u64::from(*self));
            }
        }
    )* };
}
integer_wire_value!(u8, u16, u32, u64);

impl WireValue for bool {
    const MAX_BITS: usize = 1;
    #[inline]
    fn read(raw: &[u8], field: Field) -> Option<Self> {
        Some(field.get(raw) != 0)
    }
    #[inline]
    fn write(&self, raw: &mut [u8], field: Field) {
        field.put(raw, u64::from(*self));
    }
}

impl<const N: usize> WireValue for [u8; N] {
    const MIN_BITS: usize = N * 8;
    const MAX_BITS: usize = N * 8;
    fn read(raw: &[u8], field: Field) -> Option<Self> {
        raw[field.first_byte()..field.end_byte()].try_into().ok()
    }
    fn write(&self, raw: &mut [u8], field: Field) {
        raw[field.first_byte()..field.end_byte()].copy_from_slice(self);
    }
}

/// A number that is outside the range of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{what} must be {allowed}, got {raw:#x}")]
pub struct OutOfRange {
    /// Name of the identifier, such as `LID`.
    pub what: &'static str,
    pub raw: u64,
    /// The valid range in words, such as `between 1 and 0xbfff`.
    pub allowed: &'static str,
}

/// Bytes that cannot be decoded as a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// Fewer bytes than the layout has; lengths in bytes.
    #[error("{layout} needs {need} bytes, got {got}")]
    TooShort { layout: &'static str, need: usize, got: usize },
    /// A field holds a number that is not a valid value of its type.
    #[error("field {field} of {layout} holds an invalid value")]
    BadField { layout: &'static str, field: &'static str },
}

/// Fails the build if two fields overlap or a field ends outside the layout of `len` bytes.
pub(crate) const fn check_layout(fields: &[(&str, Field)], len: usize) {
    let mut i = 0;
    while i < fields.len() {
        let a = fields[i].1;
        assert!(a.width_bits > 0 && a.end_byte() <= len, "a field ends outside its layout");
        let whole_bytes = a.start_bit.is_multiple_of(8) && a.width_bits.is_multiple_of(8);
        // `Field::get` collects the bytes it touches in 64 bits.
        assert!(
            whole_bytes || a.end_byte() - a.first_byte() <= 8,
            "a numeric field touches more than 8 bytes"
        );
        let mut j = i + 1;
        while j < fields.len() {
            let b = fields[j].1;
            let apart =
                a.start_bit + a.width_bits <= b.start_bit || b.start_bit + b.width_bits <= a.start_bit;
            assert!(apart, "two fields overlap");
            j += 1;
        }
        i += 1;
    }
}

/// Fails the build if a field is too narrow or too wide for its type.
pub(crate) const fn check_field<T: WireValue>(field: Field) {
    assert!(field.width_bits >= T::MIN_BITS, "a field is too narrow for its type");
    assert!(field.width_bits <= T::MAX_BITS, "a field is wider than its type");
}

/// Bits from the start of a layout to the end of its last field; the bits after that are reserved.
pub(crate) const fn used_bits(fields: &[(&str, Field)]) -> usize {
    let mut used = 0;
    let mut i = 0;
    while i < fields.len() {
        let end = fields[i].1.start_bit + fields[i].1.width_bits;
        used = if end > used { end } else { used };
        i += 1;
    }
    used
}

/// The field of a layout by its name; fails the build if there is none.
pub(crate) const fn field_named(fields: &[(&str, Field)], name: &str) -> Field {
    let mut i = 0;
    while i < fields.len() {
        if same_text(fields[i].0.as_bytes(), name.as_bytes()) {
            return fields[i].1;
        }
        i += 1;
    }
    panic!("no field of that name")
}

/// The field `name` of a layout that is itself the field `outer` of another layout, as a field of that other layout.
pub(crate) const fn nested_field(
    fields: &[(&str, Field)],
    outer: &str,
    inner_fields: &[(&str, Field)],
    name: &str,
) -> Field {
    field_named(inner_fields, name).moved_by(field_named(fields, outer).first_byte())
}

const fn same_text(left: &[u8], right: &[u8]) -> bool {
    let mut same = left.len() == right.len();
    let mut i = 0;
    while same && i < left.len() {
        same = left[i] == right[i];
        i += 1;
    }
    same
}

/// Declares an attribute as the table of its fields: generates a struct, `decode`, `encode` and the table itself (`FIELDS`).
/// A layout may be a field of another layout; a field shorter than the layout omits reserved bytes at its end.
macro_rules! layout {
    (
        $(#[$meta:meta])*
        pub struct $name:ident [$len:expr] {
            $( $(#[$field_meta:meta])* $field:ident : $ty:ty = $at:expr, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            $( $(#[$field_meta])* pub $field: $ty, )*
        }

        const _: () = {
            $crate::bits::check_layout($name::FIELDS, $name::LEN);
            $( $crate::bits::check_field::<$ty>($at); )*
        };

        impl $name {
            /// Length on the wire in bytes.
            pub const LEN: usize = $len;

            /// The layout as a table: field names with offsets and widths.
            pub const FIELDS: &'static [(&'static str, $crate::bits::Field)] =
                &[$( (stringify!($field), $at) ),*];

            /// Decodes the layout from the first [`Self::LEN`] bytes of `raw`. Reserved bits and bytes behind the layout are
            /// ignored.
            ///
            /// # Errors
            ///
            /// [`LayoutError::TooShort`](crate::LayoutError::TooShort) if `raw` is shorter than the layout,
            /// [`LayoutError::BadField`](crate::LayoutError::BadField) if a field holds an invalid value.
            pub fn decode(raw: &[u8]) -> Result<Self, $crate::bits::LayoutError> {
                use $crate::bits::{LayoutError, WireValue};
                let raw = raw.get(..Self::LEN).ok_or(LayoutError::TooShort {
                    layout: stringify!($name),
                    need: Self::LEN,
                    got: raw.len(),
                })?;
                Ok(Self {
                    $( $field: <$ty as WireValue>::read(raw, $at).ok_or(LayoutError::BadField {
                        layout: stringify!($name),
                        field: stringify!($field),
                    })?, )*
                })
            }

            /// Encodes the layout; reserved bits are 0.
            pub fn encode(&self) -> [u8; $len] {
                use $crate::bits::WireValue;
                let mut raw = [0u8; $len];
                $( <$ty as WireValue>::write(&self.$field, &mut raw, $at); )*
                raw
            }
        }

        impl $crate::bits::WireValue for $name {
            const MIN_BITS: usize = $crate::bits::used_bits(Self::FIELDS).next_multiple_of(8);
            const MAX_BITS: usize = Self::LEN * 8;
            fn read(raw: &[u8], field: $crate::bits::Field) -> Option<Self> {
                let mut own = [0u8; $len];
                let part = &raw[field.first_byte()..field.end_byte()];
                own[..part.len()].copy_from_slice(part);
                Self::decode(&own).ok()
            }
            fn write(&self, raw: &mut [u8], field: $crate::bits::Field) {
                let part = &mut raw[field.first_byte()..field.end_byte()];
                part.copy_from_slice(&self.encode()[..part.len()]);
            }
        }
    };
}

/// Declares an enumeration of wire codes that is total: an unknown code is kept as `Unknown(code)`.
macro_rules! wire_enum {
    (
        $(#[$meta:meta])*
        pub enum $name:ident { $( $(#[$variant_meta:meta])* $variant:ident = $code:literal, )* }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $( $(#[$variant_meta])* $variant, )*
            /// Any other code, kept as received.
            Unknown(u8),
        }

        impl $name {
            /// Decodes a code; every code has a value.
            pub const fn from_wire(code: u8) -> Self {
                match code { $( $code => Self::$variant, )* other => Self::Unknown(other) }
            }

            /// The wire code of this value.
            pub const fn to_wire(self) -> u8 {
                match self { $( Self::$variant => $code, )* Self::Unknown(code) => code }
            }
        }

        /// Serialized as its wire code.
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_u8(self.to_wire())
            }
        }

        /// Deserialized from its wire code; every code is accepted.
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                <u8 as serde::Deserialize>::deserialize(deserializer).map(Self::from_wire)
            }
        }

        impl $crate::bits::WireValue for $name {
            const MAX_BITS: usize = 8;
            #[inline]
            fn read(raw: &[u8], field: $crate::bits::Field) -> Option<Self> {
                u8::try_from(field.get(raw)).ok().map(Self::from_wire)
            }
            #[inline]
            fn write(&self, raw: &mut [u8], field: $crate::bits::Field) {
                field.put(raw, u64::from(self.to_wire()));
            }
        }
    };
}

/// Implements [`WireValue`] for an identifier with `from_wire(raw) -> Option<Self>` and `to_wire(self)`.
macro_rules! identifier_wire_value {
    ($ty:ty, $raw:ty) => {
        impl $crate::bits::WireValue for $ty {
            const MAX_BITS: usize = <$raw>::BITS as usize;
            #[inline]
            fn read(raw: &[u8], field: $crate::bits::Field) -> Option<Self> {
                <$raw>::try_from(field.get(raw)).ok().and_then(Self::from_wire)
            }
            #[inline]
            fn write(&self, raw: &mut [u8], field: $crate::bits::Field) {
                field.put(raw, u64::from(self.to_wire()));
            }
        }
    };
    // An identifier that is never zero may be absent: `None` is zero on the wire.
    ($ty:ty, $raw:ty, optional) => {
        identifier_wire_value!($ty, $raw);
        impl $crate::bits::WireValue for Option<$ty> {
            const MAX_BITS: usize = <$raw>::BITS as usize;
            #[inline]
            fn read(raw: &[u8], field: $crate::bits::Field) -> Option<Self> {
                match <$raw>::try_from(field.get(raw)).ok()? {
                    0 => Some(None),
                    number => <$ty>::from_wire(number).map(Some),
                }
            }
            #[inline]
            fn write(&self, raw: &mut [u8], field: $crate::bits::Field) {
                field.put(raw, self.map_or(0, |value| u64::from(value.to_wire())));
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn put_changes_only_the_bits_of_its_field() {
        for field in
            [bytes(2, 2), bits(3, 7, 4), bits(3, 3, 0), bits(1, 5, 5), bits_from(2, 3, 20), bytes(0, 8)]
        {
            for background in [0x00u8, 0xff, 0xa5] {
                let before = [background; 10];
                let mut raw = before;
                let number = 0x1234_5678_9abc_def1 & field.max();
                field.put(&mut raw, number);
                assert_eq!(field.get(&raw), number, "{field:?}");
                field.put(&mut raw, field.get(&before));
                assert_eq!(raw, before, "{field:?} touched a neighbour");
            }
        }
    }

    layout! {
        /// Two used bytes and two reserved ones.
        pub struct Inner[4] {
            first: u8 = bytes(0, 1),
            second: u8 = bits(1, 7, 4),
        }
    }

    layout! {
        /// Holds the used bytes of [`Inner`].
        pub struct Outer[5] {
            before: u8 = bytes(0, 1),
            inner: Inner = bytes(1, 2),
            after: u8 = bytes(3, 1),
        }
    }

    #[test]
    fn a_nested_layout_stays_inside_its_field() {
        let outer = Outer::decode(&[1, 2, 0x3f, 4, 5]).unwrap();
        assert_eq!(outer, Outer { before: 1, inner: Inner { first: 2, second: 3 }, after: 4 });
        assert_eq!(outer.encode(), [1, 2, 0x30, 4, 0], "reserved bits are written as 0");
        assert_eq!(<Inner as WireValue>::MIN_BITS, 16);
    }

    #[test]
    fn bit_notation_counts_from_the_most_significant_bit() {
        let raw = [0x00, 0x5a];
        assert_eq!(bits(1, 7, 4).get(&raw), 0x5);
        assert_eq!(bits(1, 3, 0).get(&raw), 0xa);
        assert_eq!(bits(1, 6, 6).get(&raw), 1);
        assert_eq!(bits_from(0, 3, 8).get(&raw), 0x05);
    }
}
