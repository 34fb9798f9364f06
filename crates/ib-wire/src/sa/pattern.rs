//! What a request asks for: a record as a pattern, and the components of it that count.

use std::marker::PhantomData;

use super::{ComponentMask, Record, SA_DATA_LEN};
use crate::bits::{Field, WireValue};
use crate::mad::Mad;

/// The pattern of a request for records `R`. What it does not ask for is never read: senders leave anything there.
#[derive(Debug)]
pub struct Pattern<'a, R> {
    data: &'a [u8; SA_DATA_LEN],
    mask: ComponentMask,
    record: PhantomData<R>,
}

impl<'a, R: Record> Pattern<'a, R> {
    /// The pattern of a request.
    pub fn of(request: &'a Mad) -> Self {
        Self { data: request.sa_data(), mask: request.component_mask(), record: PhantomData }
    }

    /// The same pattern without some components: the caller judges them.
    #[must_use]
    pub fn without(&self, components: ComponentMask) -> Self {
        Self { data: self.data, mask: self.mask.without(components), record: PhantomData }
    }

    /// Whether all of these components count.
    #[inline]
    pub fn selects(&self, components: ComponentMask) -> bool {
        self.mask.has(components)
    }

    /// The value of one component; `None` if it does not count, is no component of the record, or holds no value of the
    /// type.
    #[inline]
    pub fn value<T: WireValue>(&self, component: ComponentMask) -> Option<T> {
        if !self.mask.has(component) {
            return None;
        }
        let (_, field) = R::COMPONENTS.iter().find(|(named, _)| *named == component)?;
        T::read(self.data, *field)
    }

    /// The pattern made ready to be compared with many records.
    pub fn matcher(&self) -> Matcher {
        let mut matcher = Matcher { wanted: *self.data, counts: [0; SA_DATA_LEN], end: 0 };
        for (_, field) in R::COMPONENTS.iter().filter(|(component, _)| self.mask.has(*component)) {
            set_all(*field, &mut matcher.counts);
            matcher.end = matcher.end.max(field.end_byte());
        }
        matcher
    }
}

/// Compares records with a pattern, bit by bit where the pattern counts.
#[derive(Clone, Debug)]
pub struct Matcher {
    wanted: [u8; SA_DATA_LEN],
    /// The bits that count.
    counts: [u8; SA_DATA_LEN],
    /// Nothing counts from this byte on.
    end: usize,
}

impl Matcher {
    /// Whether the bytes of a record are what was asked for. Bytes that a short record does not have do not match.
    #[inline]
    pub fn matches(&self, record: &[u8]) -> bool {
        let bits = self.wanted.iter().zip(&self.counts).take(self.end);
        record.len() >= self.end
            && record.iter().zip(bits).all(|(byte, (wanted, counts))| (byte ^ wanted) & counts == 0)
    }
}

/// Sets all bits of a field.
fn set_all(field: Field, raw: &mut [u8]) {
    // Only whole bytes are longer than a number.
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
        assert_eq!(pattern.value::<u8>(LinkRecord::FROM_PORT), None, "it does not count");
        let matcher = pattern.matcher();
        assert!(matcher.matches(&[0, 1, 2, 3, 0, 4, 0, 0]));
        assert!(!matcher.matches(&[0, 1, 2, 4, 0, 4, 0, 0]));
        assert!(!matcher.matches(&[0, 1, 2]), "a record that ends before the pattern does");
        assert!(pattern.without(LinkRecord::TO_PORT).matcher().matches(&[0, 1, 2, 4, 0, 4, 0, 0]));
    }

    #[test]
    fn a_component_that_holds_no_value_is_none() {
        let mut data = [0; 64];
        data[50] = 0x80;
        let mad = request::<PathRecord>(&data, PathRecord::PKEY);
        let pattern = Pattern::<PathRecord>::of(&mad);
        assert_eq!(pattern.value::<Option<Pkey>>(PathRecord::PKEY), None);
        assert!(pattern.selects(PathRecord::PKEY));
    }

    #[test]
    fn components_longer_than_a_number_are_compared_whole() {
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
