//! The pattern of a request: a record and the components of it to compare.

use std::marker::PhantomData;

use super::{ComponentMask, Record, SA_DATA_LEN};
use crate::bits::{Field, WireValue};
use crate::mad::Mad;

/// The pattern of a request for records `R`. Components that the mask does not select are never read: their bytes are
/// undefined.
#[derive(Debug)]
pub struct Pattern<'a, R> {
    data: &'a [u8; SA_DATA_LEN],
    mask: ComponentMask,
    record: PhantomData<R>,
}

impl<'a, R: Record> Pattern<'a, R> {
    /// The pattern in the data of a request, with its component mask.
    pub fn of(request: &'a Mad) -> Self {
        Self { data: request.sa_data(), mask: request.component_mask(), record: PhantomData }
    }

    /// The same pattern without `components`, which the caller compares by its own rule.
    #[must_use]
    pub fn without(&self, components: ComponentMask) -> Self {
        Self { data: self.data, mask: self.mask.without(components), record: PhantomData }
    }

    /// Whether the request selects all of `components`.
    #[inline]
    pub fn selects(&self, components: ComponentMask) -> bool {
        self.mask.has(components)
    }

    /// The value of one component; `None` if the request does not select it, if it is not a component of the record, or if it
    /// is not a valid value of `T`.
    #[inline]
    pub fn value<T: WireValue>(&self, component: ComponentMask) -> Option<T> {
        if !self.mask.has(component) {
            return None;
        }
        let (_, field) = R::COMPONENTS.iter().find(|(named, _)| *named == component)?;
        T::read(self.data, *field)
    }

    /// Precomputes the comparison with many records.
    pub fn matcher(&self) -> Matcher {
        let mut matcher = Matcher { wanted: *self.data, selected: [0; SA_DATA_LEN], end: 0 };
        for (_, field) in R::COMPONENTS.iter().filter(|(component, _)| self.mask.has(*component)) {
            set_all(*field, &mut matcher.selected);
            matcher.end = matcher.end.max(field.end_byte());
        }
        matcher
    }
}

/// A pattern prepared for the comparison with many records: compares the selected bits.
#[derive(Clone, Debug)]
pub struct Matcher {
    wanted: [u8; SA_DATA_LEN],
    /// Mask of the selected bits.
    selected: [u8; SA_DATA_LEN],
    /// No bit is selected from this byte on.
    end: usize,
}

impl Matcher {
    /// Whether an encoded record matches. A record that ends before the last selected bit does not.
    #[inline]
    pub fn matches(&self, record: &[u8]) -> bool {
        let bits = self.wanted.iter().zip(&self.selected).take(self.end);
        record.len() >= self.end
            && record.iter().zip(bits).all(|(byte, (wanted, selected))| (byte ^ wanted) & selected == 0)
    }
}

/// Sets every bit of a field to 1.
fn set_all(field: Field, raw: &mut [u8]) {
    // Fields of more than 64 bits consist of whole bytes.
    match field.width() {
        0..=64 => field.put(raw, u64::MAX),
        _ => raw[field.first_byte()..field.end_byte()].fill(0xff),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::LidAddress;
    use crate::keys::Pkey;
    use crate::mad::{ManagementClass, Method};
    use crate::sa::{LinkRecord, NodeRecord, PathRecord};

    fn request<R: Record>(data: &[u8], mask: ComponentMask) -> Mad {
        let mut mad = Mad::new(ManagementClass::SUBNET_ADMINISTRATION, Method::GET_TABLE, R::ATTRIBUTE, 0);
        mad.sa_data_mut()[..data.len()].copy_from_slice(data);
        mad.set_component_mask(mask);
        mad
    }

    #[test]
    fn only_selected_components_are_read_and_compared() {
        let mad =
            request::<LinkRecord>(&[0, 1, 9, 3, 9, 9, 9, 9], LinkRecord::FROM_LID | LinkRecord::TO_PORT);
        let pattern = Pattern::<LinkRecord>::of(&mad);
        assert_eq!(pattern.value(LinkRecord::FROM_LID), Some(LidAddress::from_wire(1)));
        assert_eq!(pattern.value::<u8>(LinkRecord::FROM_PORT), None, "it is not selected");
        let matcher = pattern.matcher();
        assert!(matcher.matches(&[0, 1, 2, 3, 0, 4, 0, 0]));
        assert!(!matcher.matches(&[0, 1, 2, 4, 0, 4, 0, 0]));
        assert!(!matcher.matches(&[0, 1, 2]), "a record that ends before the pattern does");
        assert!(pattern.without(LinkRecord::TO_PORT).matcher().matches(&[0, 1, 2, 4, 0, 4, 0, 0]));
    }

    #[test]
    fn a_component_with_an_invalid_value_is_none() {
        let mut data = [0; 64];
        data[50] = 0x80;
        let mad = request::<PathRecord>(&data, PathRecord::PKEY);
        let pattern = Pattern::<PathRecord>::of(&mad);
        assert_eq!(pattern.value::<Option<Pkey>>(PathRecord::PKEY), None);
        assert!(pattern.selects(PathRecord::PKEY));
    }

    #[test]
    fn components_over_64_bits_are_compared_whole() {
        let mut node = [0; 112];
        node[44..48].copy_from_slice(b"node");
        let matcher =
            Pattern::<NodeRecord>::of(&request::<NodeRecord>(&node, NodeRecord::DESCRIPTION)).matcher();
        node[0] = 1;
        assert!(matcher.matches(&node));
        node[107] = 1;
        assert!(!matcher.matches(&node));
    }
}
