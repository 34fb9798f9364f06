//! Rules of the language: names, doc comments, and the texts of the REST interface.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Findings, code_only, crate_folders, is_test, read, relative, root, rust_files, without_tests};

/// Words that keep their meaning in two crates: a section of docs/glossary.md with lines such as
/// "- `Name`: the reason".
const NAMES_USED_TWICE: &str = "Names used twice";

/// Fewer words than this describe nothing, in doc comments: `Its number.` is too short. A code span alone, such as
/// `GET /v1/hosts`, is not.
const DOC_WORDS_MIN: usize = 3;

/// Fewer words than this describe nothing, in the REST interface: `Host name` is too short, `Name of the host` is not.
const OPENAPI_WORDS_MIN: usize = 3;

#[test]
fn a_public_type_name_exists_in_one_crate_only() {
    let types = crate_folders().into_iter().flat_map(|folder| {
        let name = crate_name(&folder);
        sources(&folder).flat_map(move |path| {
            let (name, place) = (name.clone(), relative(&path));
            public_types(&read(&path))
                .into_iter()
                .map(move |(line, found)| (found, name.clone(), format!("{place}:{line}")))
        })
    });
    let listed = names_used_twice(&read(&root().join("docs/glossary.md")));
    let findings = homonyms(types, &listed);
    assert!(findings.is_empty(), "\n{}", findings.join("\n"));
}

#[test]
fn openapi_texts_say_something() {
    let document = serde_json::from_str(&controller::openapi()).expect("OpenAPI is JSON");
    let findings = empty_texts(&document);
    assert!(findings.is_empty(), "\n{}", findings.join("\n"));
}

#[test]
fn public_items_of_libraries_have_doc_comments() {
    let findings = super::scan(library_sources(), undocumented);
    assert!(findings.is_empty(), "\n{findings}");
}

#[test]
fn doc_comments_of_libraries_say_something() {
    let findings = super::scan(library_sources(), short_docs);
    assert!(findings.is_empty(), "\n{findings}");
}

// ---- Where the rules are applied.

fn crate_name(folder: &Path) -> String {
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if folder == root() { "heddle".to_owned() } else { name }
}

fn sources(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    rust_files(&folder.join("src")).into_iter().filter(|path| !is_test(path))
}

/// Sources of the crates that others can use.
fn library_sources() -> impl Iterator<Item = PathBuf> {
    let libraries = crate_folders().into_iter().filter(|folder| folder.join("src/lib.rs").exists());
    libraries.flat_map(|folder| sources(&folder))
}

// ---- The rules, on strings.

/// A type name with its crate and its place, as `file:line`.
type Definition = (String, String, String);

/// Names of structs, enums, unions, traits and type aliases that are `pub`, with their lines.
fn public_types(text: &str) -> Vec<(usize, String)> {
    let code = without_tests(&code_only(text));
    let names = code.lines().enumerate().filter_map(|(index, line)| {
        let (keyword, name) = public_item(line)?;
        (keyword != "fn").then(|| (index + 1, name.to_owned()))
    });
    names.collect()
}

/// The keyword and the name of an item that is `pub` and not only `pub(crate)`.
fn public_item(line: &str) -> Option<(&str, &str)> {
    let mut words = line.trim_start().strip_prefix("pub ")?.split_whitespace();
    let keyword = words.find(|word| !["async", "const", "unsafe", "extern"].contains(word))?;
    let is_item = ["struct", "enum", "union", "trait", "type", "fn"].contains(&keyword);
    let name = words.next()?.split(|c: char| !(c.is_alphanumeric() || c == '_')).next()?;
    is_item.then_some((keyword, name))
}

/// The names in the section of the glossary that allows them.
fn names_used_twice(glossary: &str) -> BTreeSet<String> {
    let is_heading = |line: &str| line.starts_with('#');
    let section = glossary
        .lines()
        .skip_while(|line| !(is_heading(line) && line.trim_start_matches(['#', ' ']) == NAMES_USED_TWICE))
        .skip(1)
        .take_while(|line| !is_heading(line));
    let name = |line: &str| {
        let (name, reason) = line.strip_prefix("- `")?.split_once("`: ")?;
        (!reason.trim().is_empty()).then(|| name.to_owned())
    };
    section.filter_map(name).collect()
}

fn homonyms(definitions: impl IntoIterator<Item = Definition>, listed: &BTreeSet<String>) -> Vec<String> {
    let mut by_name: BTreeMap<String, BTreeMap<String, Vec<String>>> = BTreeMap::new();
    for (name, owner, place) in definitions {
        by_name.entry(name).or_default().entry(owner).or_default().push(place);
    }
    let twice = by_name.into_iter().filter(|(name, owners)| owners.len() > 1 && !listed.contains(name));
    let finding = |(name, owners): (String, BTreeMap<String, Vec<String>>)| {
        let places: Vec<String> = owners.into_values().flatten().collect();
        format!(
            "{name} is defined in {}: rename all but one, or give the reason in docs/glossary.md, section \
             \"{NAMES_USED_TWICE}\"",
            places.join(", ")
        )
    };
    twice.map(finding).collect()
}

/// Descriptions and summaries of an OpenAPI document that say nothing.
fn empty_texts(document: &Value) -> Vec<String> {
    let mut findings = Vec::new();
    collect_empty_texts(document, "", &mut findings);
    findings
}

fn collect_empty_texts(value: &Value, path: &str, findings: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, field) in fields {
                let path = format!("{path}/{key}");
                // A property may be called `description` itself: then its value is an object.
                if let ("description", Value::String(text)) = (key.as_str(), field)
                    && (text == "Likewise." || text.split_whitespace().count() < OPENAPI_WORDS_MIN)
                {
                    findings
                        .push(format!("{path}: {text:?} describes nothing; use a noun phrase with its unit"));
                }
                collect_empty_texts(field, &path, findings);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                collect_empty_texts(item, &format!("{path}/{index}"), findings);
            }
        }
        _ => {}
    }
}

/// Public types, traits and functions without a doc comment.
fn undocumented(text: &str) -> Findings {
    let mut findings = Vec::new();
    let mut has_doc = false;
    // Brackets that an attribute of several lines has left open.
    let mut open = 0;
    for (index, (raw, code)) in outside_tests(text).into_iter().enumerate() {
        let is_at_top = code.starts_with("pub ");
        let (raw, code) = (raw.trim(), code.trim());
        if raw.starts_with("///") || code.starts_with("#[doc") {
            has_doc = true;
        } else if open > 0 || code.starts_with("#[") {
            open += code.matches('[').count();
            open -= code.matches(']').count().min(open);
        } else {
            // Methods need no doc comment; items at the top of a module do.
            if let (false, true, Some((keyword, name))) = (has_doc, is_at_top, public_item(code)) {
                findings
                    .push((index + 1, format!("{keyword} {name} has no doc comment: state its contract")));
            }
            has_doc = false;
        }
    }
    findings
}

/// Doc comments that are too short to say anything.
fn short_docs(text: &str) -> Findings {
    let mut findings = Vec::new();
    let mut block: Option<(usize, String)> = None;
    let lines = outside_tests(text);
    let comments = lines.iter().map(|(raw, _)| {
        let raw = raw.trim();
        raw.strip_prefix("///").or_else(|| raw.strip_prefix("//!"))
    });
    for (index, comment) in comments.chain([None]).enumerate() {
        match (comment, &mut block) {
            (Some(comment), Some((_, words))) => *words += comment,
            (Some(comment), None) => block = Some((index + 1, comment.to_owned())),
            (None, _) => {
                if let Some((line, words)) = block.take()
                    && !words.contains('`')
                    && words.split_whitespace().count() < DOC_WORDS_MIN
                {
                    let text = words.trim();
                    findings.push((line, format!("{text:?} says nothing: state the contract, or remove it")));
                }
            }
        }
    }
    findings
}

/// The lines of a file as they stand and as code only; those of tests are empty.
fn outside_tests(text: &str) -> Vec<(String, String)> {
    let all = code_only(text);
    let kept = without_tests(&all);
    let lines = text.lines().zip(all.lines().zip(kept.lines().chain(std::iter::repeat(""))));
    let line = |(raw, (all, kept)): (&str, (&str, &str))| {
        let is_of_test = !all.trim().is_empty() && kept.trim().is_empty();
        if is_of_test { (String::new(), String::new()) } else { (raw.to_owned(), kept.to_owned()) }
    };
    lines.map(line).collect()
}

// ---- Tests of the rules.

fn definition(name: &str, owner: &str) -> Definition {
    (name.to_owned(), owner.to_owned(), format!("crates/{owner}/src/lib.rs:1"))
}

#[test]
fn a_type_name_in_two_crates_is_found() {
    let text = "pub struct Place;\npub(crate) struct Inner;\npub enum Way<T> { A(T) }\npub fn Place() {}\n\
                #[cfg(test)]\nmod tests {\n    pub struct Rig;\n}\n    pub type Told = u8;\n";
    let found: Vec<(usize, String)> = public_types(text);
    let expected = [(1, "Place"), (3, "Way"), (9, "Told")].map(|(line, name)| (line, name.to_owned()));
    assert_eq!(found, expected);

    let all =
        [definition("Place", "a"), definition("Place", "b"), definition("Way", "a"), definition("Way", "a")];
    let findings = homonyms(all.clone(), &BTreeSet::new());
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(findings[0].starts_with("Place is defined in crates/a/src/lib.rs:1, crates/b/"), "{findings:?}");
    let glossary = "# Glossary\n- `Way`: elsewhere\n## Names used twice\n\n- `Place`: one record, two interfaces\n\
                    - `Empty`: \n## Other\n- `Node`: no\n";
    assert_eq!(names_used_twice(glossary), BTreeSet::from(["Place".to_owned()]));
    assert_eq!(homonyms(all, &names_used_twice(glossary)), [""; 0]);
}

#[test]
fn an_openapi_text_that_says_nothing_is_found() {
    let document = serde_json::json!({
        "paths": { "/v1/hosts": { "get": { "summary": "All hosts", "description": "Hosts and their state." } } },
        "schemas": [{ "properties": { "description": { "description": "Likewise." } } }, { "description": "Its name." }],
    });
    let findings = empty_texts(&document);
    assert_eq!(findings.len(), 2, "{findings:?}");
    assert!(findings[0].starts_with("/schemas/0/properties/description/description"), "{findings:?}");
}

#[test]
fn a_public_item_without_a_doc_comment_is_found() {
    let lines = |text: &str| -> Vec<usize> { undocumented(text).into_iter().map(|(line, _)| line).collect() };
    let documented =
        "/// Sends a datagram.\n#[must_use]\n#[derive(\n    Debug,\n)]\npub async fn send() {}\n";
    assert_eq!(lines(documented), [0; 0]);
    assert_eq!(lines("#[derive(Debug)]\npub struct Bare {\n    pub field: u8,\n}\n"), [2]);
    assert_eq!(
        lines("/// Documented here.\nstruct A;\n\npub trait Bare {}\nimpl A {\n    pub const fn f() {}\n}\n"),
        [4]
    );
    assert_eq!(lines("pub(crate) fn inner() {}\npub use a::B;\npub mod c;\npub const D: u8 = 1;\n"), [0; 0]);
    assert_eq!(lines("#[cfg(test)]\nmod tests {\n    pub fn helper() {}\n}\npub fn bare() {}\n"), [5]);
}

#[test]
fn a_doc_comment_of_two_words_is_found() {
    let lines = |text: &str| -> Vec<usize> { short_docs(text).into_iter().map(|(line, _)| line).collect() };
    assert_eq!(lines("/// Its number.\nn: u8,\n/// The number of ports of a switch.\nm: u8,\n"), [1]);
    assert_eq!(lines("//! Words.\n\n/// Reads it\n/// to its end.\nfn f() {}\n"), [1]);
    assert_eq!(lines("// Not doc.\nlet a = \"/// x\";\n"), [0; 0]);
}
