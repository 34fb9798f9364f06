//! How values are written by serde where their type does not say so.

/// Codes that were received may be any; codes that someone wishes for have to mean something.
pub(crate) mod known {
    use ib_wire::sa::Rate;
    use ib_wire::{DataLanes, Mtu};
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer};

    pub(crate) fn mtu<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Mtu, D::Error> {
        let mtu = Mtu::deserialize(deserializer)?;
        let unknown =
            || D::Error::custom(format_args!("{} is not the code of an MTU: 1 to 5", mtu.to_wire()));
        (mtu.bytes() > 0).then_some(mtu).ok_or_else(unknown)
    }

    pub(crate) fn rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Rate, D::Error> {
        let rate = Rate::deserialize(deserializer)?;
        let unknown =
            || D::Error::custom(format_args!("{} is not the code of a rate: 2 to 24", rate.to_wire()));
        (rate.nominal_mbps() > 0).then_some(rate).ok_or_else(unknown)
    }

    pub(crate) fn lanes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DataLanes, D::Error> {
        let lanes = DataLanes::deserialize(deserializer)?;
        let unknown =
            || D::Error::custom(format_args!("{} is not the code of data lanes: 1 to 5", lanes.to_wire()));
        (lanes.count() > 0).then_some(lanes).ok_or_else(unknown)
    }
}

/// The queue key of a group, as a number. The type itself has no serde, so that none is written by accident.
pub(crate) mod written_qkey {
    use ib_wire::QKey;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(key: &QKey, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(key.to_wire())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<QKey, D::Error> {
        u32::deserialize(deserializer).map(QKey::from_wire)
    }
}

/// A map as a list of pairs: keys of JSON are texts, which not every key is.
pub(crate) mod listed {
    use std::collections::BTreeMap;

    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<K: Serialize, V: Serialize, S: Serializer>(
        map: &BTreeMap<K, V>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    pub(crate) fn deserialize<'de, K, V, D>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
    where
        K: Deserialize<'de> + Ord,
        V: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        let pairs = Vec::<(K, V)>::deserialize(deserializer)?;
        let count = pairs.len();
        let map: BTreeMap<K, V> = pairs.into_iter().collect();
        if map.len() < count {
            return Err(D::Error::custom("something is listed twice"));
        }
        Ok(map)
    }
}

/// Forwarding tables that plans share, written as if they did not.
pub(crate) mod shared_tables {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use ib_wire::{Guid, Lid};
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::packed;
    use crate::plan::{LINEAR_BYTES_MAX, LinearTable};

    pub(crate) fn serialize<S: Serializer>(
        tables: &BTreeMap<Guid, Arc<LinearTable>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(tables.iter().map(|(guid, table)| (guid, packed::pack(&table.to_exits()))))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<Guid, Arc<LinearTable>>, D::Error> {
        let texts = BTreeMap::<Guid, String>::deserialize(deserializer)?;
        let mut left = LINEAR_BYTES_MAX;
        let mut tables = BTreeMap::new();
        for (guid, text) in texts {
            let exits = packed::unpack(&text, left.min(usize::from(Lid::MAX) + 1));
            let exits = exits.map_err(|error| D::Error::custom(format_args!("table of {guid}: {error}")))?;
            left -= exits.len();
            tables.insert(guid, Arc::new(LinearTable::from_exits(exits)));
        }
        Ok(tables)
    }
}

/// Values that maps share, written as if they did not.
pub(crate) mod shared_values {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::shared_map::SharedMap;

    pub(crate) fn serialize<K: Serialize, V: Serialize, S: Serializer>(
        map: &SharedMap<K, Arc<V>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(map.iter().map(|(key, value)| (key, &**value)))
    }

    pub(crate) fn deserialize<'de, K, V, D>(deserializer: D) -> Result<SharedMap<K, Arc<V>>, D::Error>
    where
        K: Deserialize<'de> + Ord + Clone,
        V: Deserialize<'de> + Clone,
        D: Deserializer<'de>,
    {
        let map = SharedMap::<K, V>::deserialize(deserializer)?;
        Ok(map.iter().map(|(key, value)| (key.clone(), Arc::new(value.clone()))).collect())
    }
}
