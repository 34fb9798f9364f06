//! What is known of the ports of a node. Most nodes have one: a sorted list takes a tenth of the memory of a tree.

use ib_wire::PortNum;

/// Values by port number, in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortMap<T>(Vec<(PortNum, T)>);

impl<T> Default for PortMap<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> PortMap<T> {
    fn find(&self, port: PortNum) -> Result<usize, usize> {
        self.0.binary_search_by_key(&port, |(known, _)| *known)
    }

    pub fn get(&self, port: &PortNum) -> Option<&T> {
        self.find(*port).ok().and_then(|index| self.0.get(index)).map(|(_, value)| value)
    }

    /// Returns the value before.
    pub fn insert(&mut self, port: PortNum, value: T) -> Option<T> {
        match self.find(port) {
            Ok(index) => Some(std::mem::replace(&mut self.0[index].1, value)),
            Err(index) => {
                self.insert_at(index, port, value);
                None
            }
        }
    }

    pub fn remove(&mut self, port: &PortNum) -> Option<T> {
        self.find(*port).ok().map(|index| self.0.remove(index).1)
    }

    /// The value of a port, which is inserted if there is none.
    pub fn get_or_insert(&mut self, port: PortNum, value: T) -> &mut T {
        let index = match self.find(port) {
            Ok(index) => index,
            Err(index) => {
                self.insert_at(index, port, value);
                index
            }
        };
        &mut self.0[index].1
    }

    fn insert_at(&mut self, index: usize, port: PortNum, value: T) {
        if self.0.is_empty() {
            self.0.reserve_exact(1);
        }
        self.0.insert(index, (port, value));
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn contains_key(&self, port: &PortNum) -> bool {
        self.find(*port).is_ok()
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&PortNum, &T)> + DoubleEndedIterator {
        self.0.iter().map(|(port, value)| (port, value))
    }

    pub fn keys(&self) -> impl ExactSizeIterator<Item = &PortNum> + DoubleEndedIterator {
        self.0.iter().map(|(port, _)| port)
    }

    pub fn values(&self) -> impl ExactSizeIterator<Item = &T> + DoubleEndedIterator {
        self.0.iter().map(|(_, value)| value)
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().map(|(_, value)| value)
    }
}

impl<T> FromIterator<(PortNum, T)> for PortMap<T> {
    fn from_iter<I: IntoIterator<Item = (PortNum, T)>>(values: I) -> Self {
        let mut values: Vec<(PortNum, T)> = values.into_iter().collect();
        // The last value of a port counts, as with `insert`.
        values.reverse();
        values.sort_by_key(|(port, _)| *port);
        values.dedup_by_key(|(port, _)| *port);
        values.shrink_to_fit();
        Self(values)
    }
}

impl<'a, T> IntoIterator for &'a PortMap<T> {
    type Item = (&'a PortNum, &'a T);
    type IntoIter = std::iter::Map<std::slice::Iter<'a, (PortNum, T)>, fn(&'a (PortNum, T)) -> Self::Item>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.iter().map(|(port, value)| (port, value))
    }
}
