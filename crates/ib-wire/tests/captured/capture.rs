//! The captured exchanges, see `fixtures/mads/README.md`.

use std::fs;
use std::path::Path;

use ib_wire::{MAD_LEN, Mad, ManagementClass};
use serde::Deserialize;

/// A captured request with its response, and what the stock tool printed for it.
pub struct Exchange {
    pub name: String,
    pub request: Mad,
    pub response: Option<Mad>,
    pub printed: Option<String>,
}

impl Exchange {
    /// The response; the test fails without one.
    pub fn answer(&self) -> &Mad {
        self.response.as_ref().unwrap_or_else(|| panic!("{} has no response", self.name))
    }

    /// What the tool printed; the test fails if nothing was recorded.
    pub fn text(&self) -> &str {
        self.printed.as_deref().unwrap_or_else(|| panic!("nothing was printed for {}", self.name))
    }

    /// Both datagrams of the exchange, with a name for messages.
    pub fn datagrams(&self) -> impl Iterator<Item = (String, &Mad)> {
        let request = (format!("{} request", self.name), &self.request);
        let response = self.response.as_ref().map(|mad| (format!("{} response", self.name), mad));
        [Some(request), response].into_iter().flatten()
    }
}

/// All exchanges of a file; the test fails if the file is missing or empty.
pub fn exchanges(file: &str) -> Vec<Exchange> {
    #[derive(Deserialize)]
    struct Record {
        name: String,
        request: String,
        response: Option<String>,
        printed: Option<String>,
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/mads").join(file);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let records: Vec<Record> = serde_json::from_str(&text).unwrap();
    assert!(!records.is_empty(), "{file} has no exchanges");
    let read = |record: Record| Exchange {
        request: mad(&record.request),
        response: record.response.as_deref().map(mad),
        name: record.name,
        printed: record.printed,
    };
    records.into_iter().map(read).collect()
}

/// The exchange with this name; the test fails without one.
pub fn exchange(file: &str, name: &str) -> Exchange {
    exchanges(file)
        .into_iter()
        .find(|exchange| exchange.name == name)
        .unwrap_or_else(|| panic!("no {name} in {file}"))
}

/// Whether a datagram is a directed-route SMP.
pub fn is_directed(mad: &Mad) -> bool {
    mad.class() == ManagementClass::SUBNET_DIRECTED
}

fn mad(hex: &str) -> Mad {
    assert_eq!(hex.len(), 2 * MAD_LEN);
    let byte = |i: usize| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap();
    Mad(std::array::from_fn(byte))
}
