//! The keys of scenario files.

use fabric_sim::scenario::{Scenario, SendPattern, SendRate, Size, Span};
use fabric_sim::traffic::Time;
use serde::Deserialize;
use serde::de::value::{Error, MapDeserializer, SeqDeserializer};
use serde::de::{Deserializer, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;

/// A value of a file, as a self-describing format such as TOML would present it.
#[derive(Clone)]
enum Value {
    Text(&'static str),
    List(Vec<Value>),
    Table(Vec<(&'static str, Value)>),
}

impl IntoDeserializer<'_> for Value {
    type Deserializer = Self;
    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Value {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Self::Text(text) => visitor.visit_str(text),
            Self::List(list) => visitor.visit_seq(SeqDeserializer::new(list.into_iter())),
            Self::Table(table) => visitor.visit_map(MapDeserializer::new(table.into_iter())),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self {
            Self::Text(text) => text.into_deserializer().deserialize_enum(name, variants, visitor),
            other => other.deserialize_any(visitor),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// A scenario of one workload under the given keys.
fn parse(list: &'static str, rate: &'static str) -> Result<Scenario, String> {
    let workload = vec![
        ("cluster", Value::Text("blue")),
        ("send", Value::Text("all-to-all")),
        ("rate", Value::Text(rate)),
    ];
    let file = vec![("duration", Value::Text("1ms")), (list, Value::List(vec![Value::Table(workload)]))];
    Scenario::deserialize(Value::Table(file)).map_err(|error| error.to_string())
}

#[test]
fn a_scenario_file_lists_workloads() {
    let scenario = parse("workloads", "guaranteed").unwrap();
    assert_eq!(scenario.duration, Span::from_time(Time::from_us(1000)));
    assert_eq!((scenario.warm_up, scenario.buffer), (Span::default(), Size::from_bytes(64 << 10)));
    let [workload] = &scenario.workloads[..] else { panic!("one workload") };
    assert_eq!((workload.cluster.as_str(), workload.send), ("blue", SendPattern::AllToAll));
    assert_eq!(workload.rate, SendRate::Guaranteed);
}

#[test]
fn a_renamed_key_is_rejected_with_its_new_name() {
    let error = parse("acts", "guaranteed").unwrap_err();
    assert_eq!(error, "the key `acts` was renamed to `workloads`");
    let unknown = parse("plays", "guaranteed").unwrap_err();
    assert!(unknown.starts_with("unknown field `plays`"), "the control: {unknown}");
}

#[test]
fn a_renamed_rate_is_rejected_with_its_new_name() {
    let error = parse("workloads", "promised").unwrap_err();
    assert_eq!(error, "the rate `promised` was renamed to `guaranteed`");
    let unknown = parse("workloads", "half").unwrap_err();
    assert!(unknown.starts_with("a rate must be `full`, `guaranteed`"), "the control: {unknown}");
}
