//! Modules for `#[serde(with)]`: serialized forms that differ from the type's own.

/// Wire codes in intents and plans: unlike received codes they must be defined ones.
pub(crate) mod known {
    use ib_wire::{DataLanes, Mtu, Rate};
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer};

    pub(crate) fn mtu<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Mtu, D::Error> {
        let mtu = Mtu::deserialize(deserializer)?;
        let unknown =
            || D::Error::custom(format_args!("MTU code must be between 1 and 5, got {}", mtu.to_wire()));
        (mtu.bytes() > 0).then_some(mtu).ok_or_else(unknown)
    }

    pub(crate) fn rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Rate, D::Error> {
        let rate = Rate::deserialize(deserializer)?;
        let unknown = || {
            D::Error::custom(format_args!(
                "rate code must be a defined one between 2 and 24, got {}",
                rate.to_wire()
            ))
        };
        (rate.nominal_mbps() > 0).then_some(rate).ok_or_else(unknown)
    }

    pub(crate) fn lanes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DataLanes, D::Error> {
        let lanes = DataLanes::deserialize(deserializer)?;
        let unknown = || {
            D::Error::custom(format_args!(
                "code of data lanes must be between 1 and 5, got {}",
                lanes.to_wire()
            ))
        };
        (lanes.count() > 0).then_some(lanes).ok_or_else(unknown)
    }
}

/// A Q_Key as a number. [`ib_wire::QKey`] has no serde implementation, so that none is serialized by accident.
pub(crate) mod qkey {
    use ib_wire::QKey;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(key: &QKey, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(key.to_wire())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<QKey, D::Error> {
        u32::deserialize(deserializer).map(QKey::from_wire)
    }
}

/// A map as a list of pairs, for keys that cannot be JSON object keys. Duplicate keys are rejected.
pub(crate) mod pair_list {
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
            return Err(D::Error::custom("duplicate key in a list of pairs"));
        }
        Ok(map)
    }
}

/// Shared linear forwarding tables, each written in full in packed form.
pub(crate) mod packed_tables {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use ib_wire::{Guid, Lid};
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::packed;
    use crate::tables::{LINEAR_BYTES_MAX, LinearTable};

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
            let exits = exits.map_err(|error| {
                D::Error::custom(format_args!("forwarding table of switch {guid}: {error}"))
            })?;
            left -= exits.len();
            tables.insert(guid, Arc::new(LinearTable::from_exits(exits)));
        }
        Ok(tables)
    }
}

/// A map with reference-counted values, each written in full.
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
