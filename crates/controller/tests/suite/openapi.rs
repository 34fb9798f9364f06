//! The committed description of the interface is the interface.

#[test]
fn the_committed_description_is_what_is_served() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
    let served = controller::openapi();
    if std::env::var_os("HEDDLE_UPDATE").is_some() {
        std::fs::write(path, &served).expect("docs can be written");
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        committed == served,
        "docs/openapi.json is stale: HEDDLE_UPDATE=1 cargo nextest run -p controller openapi"
    );
}
