//! Values of a profile as people write them: numbers of lanes and bytes, names of speeds.

pub(super) mod lanes {
    use ib_wire::DataLanes;
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(lanes: &DataLanes, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(lanes.count())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DataLanes, D::Error> {
        let count = u8::deserialize(deserializer)?;
        let message = || D::Error::custom(format_args!("lanes must be 1, 2, 4, 8 or 15, got {count}"));
        DataLanes::from_count(count).ok_or_else(message)
    }
}

pub(super) mod mtu {
    use ib_wire::Mtu;
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    const ALL: [Mtu; 5] = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];

    pub fn serialize<S: Serializer>(mtu: &Mtu, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u16(mtu.bytes())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Mtu, D::Error> {
        let bytes = u16::deserialize(deserializer)?;
        let message =
            || D::Error::custom(format_args!("mtu must be 256, 512, 1024, 2048 or 4096, got {bytes}"));
        ALL.into_iter().find(|mtu| mtu.bytes() == bytes).ok_or_else(message)
    }
}

pub(super) mod speed {
    use fabric_model::Speed;
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(speed: &Speed, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(speed.name())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Speed, D::Error> {
        let name = String::deserialize(deserializer)?;
        let names = Speed::ALL.map(Speed::name).join(", ");
        let message = || D::Error::custom(format_args!("speed_max must be one of {names}, got {name:?}"));
        Speed::ALL.into_iter().find(|speed| speed.name() == name).ok_or_else(message)
    }
}
