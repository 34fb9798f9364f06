//! The committed OpenAPI document is the one that is served.

#[test]
fn the_committed_openapi_document_is_current() {
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
