//! Column codec: enums, timestamps and JSON documents as text, as in the REST interface.

use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use super::{StoreError, parsed};

/// A fieldless enum as text, as in the REST interface.
pub fn encode_enum(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(word)) => word,
        // Only enums without fields are stored this way; anything else is found by the first test that reads it back.
        other => format!("{other:?}"),
    }
}

/// Reverses [`encode_enum`].
pub fn decode_enum<T: DeserializeOwned>(what: &'static str, word: &str) -> Result<T, StoreError> {
    serde_json::from_value(Value::String(word.to_owned()))
        .map_err(|_| StoreError::InvalidValue { what, value: word.to_owned() })
}

/// A value as JSON text.
pub fn encode_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("what is stored has names as keys only")
}

/// Reverses [`encode_json`].
pub fn decode_json<T: DeserializeOwned>(what: &'static str, text: &str) -> Result<T, StoreError> {
    // The text may hold secrets, so only the parser error is reported.
    serde_json::from_str(text).map_err(|error| StoreError::InvalidValue { what, value: error.to_string() })
}

/// Reads columns of a row by name, with range checks.
pub trait Columns {
    fn text(&self, name: &'static str) -> Result<String, StoreError>;
    fn optional_text(&self, name: &'static str) -> Result<Option<String>, StoreError>;
    fn bytes(&self, name: &'static str) -> Result<Vec<u8>, StoreError>;
    fn number<T: TryFrom<i64>>(&self, name: &'static str) -> Result<T, StoreError>;
    fn optional_number<T: TryFrom<i64>>(&self, name: &'static str) -> Result<Option<T>, StoreError>;
    fn flag(&self, name: &'static str) -> Result<bool, StoreError>;
    fn time(&self, name: &'static str) -> Result<Timestamp, StoreError>;
}

impl Columns for SqliteRow {
    fn text(&self, name: &'static str) -> Result<String, StoreError> {
        Ok(self.try_get(name)?)
    }

    fn optional_text(&self, name: &'static str) -> Result<Option<String>, StoreError> {
        Ok(self.try_get(name)?)
    }

    fn bytes(&self, name: &'static str) -> Result<Vec<u8>, StoreError> {
        Ok(self.try_get(name)?)
    }

    fn number<T: TryFrom<i64>>(&self, name: &'static str) -> Result<T, StoreError> {
        let number: i64 = self.try_get(name)?;
        T::try_from(number).map_err(|_| StoreError::InvalidValue { what: name, value: number.to_string() })
    }

    fn optional_number<T: TryFrom<i64>>(&self, name: &'static str) -> Result<Option<T>, StoreError> {
        let number: Option<i64> = self.try_get(name)?;
        number.map(|_| self.number(name)).transpose()
    }

    fn flag(&self, name: &'static str) -> Result<bool, StoreError> {
        Ok(self.try_get(name)?)
    }

    fn time(&self, name: &'static str) -> Result<Timestamp, StoreError> {
        parsed(name, &self.text(name)?)
    }
}
