//! Rules of the workspace that the compiler does not check. A failure names the file and line and says what to do.

mod language;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, MetadataCommand};

/// Allowed dependencies between crates, the same as in ARCHITECTURE.md.
const ALLOWED_EDGES: &[(&str, &[&str])] = &[
    // bytes
    ("ib-wire", &[]),
    // model
    ("fabric-model", &["ib-wire"]),
    // drawings of topologies and charts
    ("fabric-drawing", &["fabric-model", "ib-wire"]),
    // decisions: independent of each other
    ("fabric-compiler", &["fabric-model", "ib-wire"]),
    ("fabric-verifier", &["fabric-model", "ib-wire"]),
    // machines: the manager and the emulation interact only by datagrams
    ("subnet-manager", &["fabric-model", "ib-wire"]),
    ("fabric-sim", &["fabric-model", "ib-wire"]),
    // the tenant's network: emulated devices, a default plan, and the manager's answers about it
    (
        "tenant-view",
        &["fabric-sim", "fabric-compiler", "fabric-verifier", "subnet-manager", "fabric-model", "ib-wire"],
    ),
    // the contracts
    ("controller-api", &["fabric-model", "ib-wire"]),
    ("control-protocol", &["fabric-model", "ib-wire"]),
    // files
    ("durable-file", &[]),
    // shells; the agents of hosts and guests decide nothing
    ("ib-transport", &["ib-wire"]),
    ("umad-preload", &["ib-transport", "ib-wire"]),
    (
        "controller",
        &[
            "control-protocol",
            "controller-api",
            "durable-file",
            "fabric-compiler",
            "fabric-verifier",
            "fabric-model",
            "ib-transport",
            "ib-wire",
            "tenant-view",
        ],
    ),
    ("guest", &["ib-transport", "ib-wire"]),
    (
        "node-agent",
        &["control-protocol", "controller-api", "durable-file", "fabric-model", "guest", "ib-wire"],
    ),
    (
        "heddle",
        &[
            "control-protocol",
            "controller",
            "controller-api",
            "durable-file",
            "fabric-compiler",
            "fabric-drawing",
            "fabric-model",
            "fabric-sim",
            "fabric-verifier",
            "ib-transport",
            "ib-wire",
            "subnet-manager",
        ],
    ),
    (
        "bench",
        &[
            "fabric-compiler",
            "fabric-drawing",
            "fabric-model",
            "fabric-sim",
            "fabric-verifier",
            "ib-transport",
            "ib-wire",
            "subnet-manager",
            "tenant-view",
        ],
    ),
];

/// Additional dependencies of tests: the verifier checks the compiler, and its own tests need compiled plans.
/// Stock tools check views.
const ALLOWED_TEST_EDGES: &[(&str, &[&str])] = &[
    ("fabric-compiler", &["fabric-verifier"]),
    ("fabric-verifier", &["fabric-compiler"]),
    ("control-protocol", &["fabric-compiler"]),
    ("tenant-view", &["ib-transport"]),
    // The checks that benchmarks and tests share.
    // A library for stock tools, which the tests preload and do not link.
    ("heddle", &["bench", "umad-preload"]),
];

/// Crates without I/O: time, randomness and bytes are arguments.
const CORE_CRATES: &[&str] = &[
    "ib-wire",
    "fabric-model",
    "fabric-compiler",
    "fabric-verifier",
    "subnet-manager",
    "fabric-sim",
    "tenant-view",
];

const SEEDED: &str = "seed a generator of rand_pcg with an argument";

/// Names that a core crate must not use, and what to do instead.
const NOT_IN_CORES: &[(&str, &str)] = &[
    ("std::net", "take bytes as arguments; sockets belong to ib-transport"),
    ("std::os", "take bytes as arguments; the operating system belongs to shells"),
    ("std::fs", "take text or bytes as arguments; files belong to the command line"),
    ("std::env", "take values as arguments; the environment belongs to the command line"),
    ("std::process", "return an error; processes belong to the command line"),
    ("std::thread", "stay a machine that is called; threads belong to shells"),
    ("SystemTime", "take `now` as an argument"),
    ("Instant", "take `now: Duration` as an argument"),
    ("rand::rng", SEEDED),
    ("rand::random", SEEDED),
    ("thread_rng", SEEDED),
    ("ThreadRng", SEEDED),
    ("OsRng", SEEDED),
    ("SysRng", SEEDED),
    ("from_os_rng", SEEDED),
];

/// Values, not sockets: a GID prints as an IPv6 address.
const ALLOWED_IN_CORES: &[&str] = &["std::net::Ipv6Addr"];

/// Leftovers that must not be committed.
const NOT_ANYWHERE: &[(&str, &str)] = &[
    ("todo!(", "write it, or leave it out"),
    ("unimplemented!(", "write it, or leave it out"),
    ("#[ignore", "make the test run, or remove it"),
];

/// Lines of a file that is not a test; more want splitting.
const FILE_LINES_MAX: usize = 600;

#[test]
fn crates_use_only_what_the_table_of_edges_allows() {
    let manifest = root().join("Cargo.toml");
    let metadata = MetadataCommand::new().manifest_path(manifest).no_deps().exec().expect("cargo metadata");
    let members: BTreeSet<&str> = metadata.packages.iter().map(|package| package.name.as_str()).collect();
    let mut findings = String::new();
    for package in &metadata.packages {
        let place = relative(package.manifest_path.as_std_path());
        for dependency in &package.dependencies {
            if members.contains(dependency.name.as_str())
                && let Err(finding) = check_edge(&package.name, &dependency.name, dependency.kind)
            {
                findings += &format!("{place}: {finding}\n");
            }
        }
        if !ALLOWED_EDGES.iter().any(|(name, _)| *name == package.name.as_str()) {
            findings += &format!(
                "{place}: {} is not in ALLOWED_EDGES of tests/suite/tidy.rs: add it\n",
                package.name
            );
        }
    }
    assert!(findings.is_empty(), "\n{findings}");
}

#[test]
fn crates_inherit_the_lints_of_the_workspace() {
    let manifests = crate_folders().into_iter().map(|folder| folder.join("Cargo.toml"));
    let without: Vec<String> = manifests
        .filter(|manifest| !inherits_lints(&read(manifest)))
        .map(|manifest| format!("{}:1: add `[lints]` with `workspace = true`", relative(&manifest)))
        .collect();
    assert!(without.is_empty(), "\n{}", without.join("\n"));
}

#[test]
fn cores_know_no_clock_socket_file_thread_or_dice() {
    let sources =
        CORE_CRATES.iter().flat_map(|name| rust_files(&root().join("crates").join(name).join("src")));
    let findings =
        scan(sources.filter(|path| !is_test(path)), |text| names(&without_tests(&code_only(text))));
    assert!(findings.is_empty(), "\n{findings}");
}

#[test]
fn nothing_is_left_to_be_done_and_no_test_is_skipped() {
    let findings = scan(all_rust_files(), |text| leftovers(&code_only(text)));
    assert!(findings.is_empty(), "\n{findings}");
}

#[test]
fn files_are_short_enough_to_read() {
    let findings = scan(all_rust_files().filter(|path| !is_test(path)), length);
    assert!(findings.is_empty(), "\n{findings}");
}

#[test]
fn links_between_pages_lead_somewhere() {
    let mut findings = String::new();
    for page in pages() {
        for (line, link) in links(&read(&page)) {
            let target = page.parent().expect("a page is in a folder").join(&link);
            if !target.exists() {
                findings += &format!("{}:{line}: {link} is not there\n", relative(&page));
            }
        }
    }
    assert!(findings.is_empty(), "\n{findings}");
}

/// Every user of a machine can read the arguments of a process, so pages must not put keys there.
#[test]
fn guides_put_no_management_key_into_arguments() {
    let is_shown =
        |line: &&str| line.contains("smpquery") && (line.contains(" -y") || line.contains("--m_key"));
    for page in pages() {
        let text = read(&page);
        let shown: Vec<&str> = text.lines().filter(is_shown).collect();
        assert!(shown.is_empty(), "{}: {shown:?}; use heddle node-key --config and -z", page.display());
    }
}

#[test]
fn assumptions_are_defined_once_and_cited_as_defined() {
    let mut defined = BTreeMap::new();
    for (index, line) in read(&root().join("docs/assumptions.md")).lines().enumerate() {
        if let Some(id) = line.strip_prefix("| A-").and_then(|rest| rest.split(' ').next()) {
            let earlier = defined.insert(format!("A-{id}"), index + 1);
            assert_eq!(earlier, None, "docs/assumptions.md:{}: A-{id} is defined twice", index + 1);
        }
    }
    assert!(!defined.is_empty(), "docs/assumptions.md defines nothing: its rows start with `| A-…`");
    let findings = scan(pages().into_iter().chain(all_rust_files().filter(|path| !is_test(path))), |text| {
        let unknown = cited_assumptions(text).into_iter().filter(|(_, id)| !defined.contains_key(id));
        unknown.map(|(line, id)| (line, format!("docs/assumptions.md has no {id}"))).collect()
    });
    assert!(findings.is_empty(), "\n{findings}");
}

// ---- The rules, on strings.

type Findings = Vec<(usize, String)>;

fn check_edge(from: &str, to: &str, kind: DependencyKind) -> Result<(), String> {
    let has =
        |table: &[(&str, &[&str])]| table.iter().any(|(user, used)| *user == from && used.contains(&to));
    if has(ALLOWED_EDGES) || (kind == DependencyKind::Development && has(ALLOWED_TEST_EDGES)) {
        return Ok(());
    }
    Err(format!(
        "{from} may not use {to}. Move the code to where both may reach it; if the edge is right, say why in a \
         page of docs/decisions/, draw it in ARCHITECTURE.md and add it to tests/suite/tidy.rs"
    ))
}

fn inherits_lints(manifest: &str) -> bool {
    let section = manifest.lines().map(str::trim).skip_while(|line| *line != "[lints]").skip(1);
    section.take_while(|line| !line.starts_with('[')).any(|line| line.replace(' ', "") == "workspace=true")
}

/// Forbidden names in code, in paths and in grouped imports alike.
fn names(code: &str) -> Findings {
    let mut findings = Vec::new();
    let forbidden = |path: &str| {
        !ALLOWED_IN_CORES.iter().any(|allowed| format!("{path}::").starts_with(&format!("{allowed}::")))
    };
    for (line, path) in paths(code).into_iter().filter(|(_, path)| forbidden(path)) {
        for (name, instead) in NOT_IN_CORES {
            if format!("::{path}::").contains(&format!("::{name}::")) {
                findings.push((line, format!("{name} has no place in a core: {instead}")));
            }
        }
    }
    findings
}

fn leftovers(code: &str) -> Findings {
    let mut findings = Vec::new();
    for (index, line) in code.lines().enumerate() {
        for (left, instead) in NOT_ANYWHERE {
            if line.contains(left) {
                findings.push((index + 1, format!("{left} was left behind: {instead}")));
            }
        }
    }
    findings
}

fn length(text: &str) -> Findings {
    match text.lines().count() {
        lines if lines > FILE_LINES_MAX => {
            vec![(lines, format!("{lines} lines, more than {FILE_LINES_MAX}: split the file"))]
        }
        _ => Vec::new(),
    }
}

/// Relative links of a Markdown page, without anchors.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for rest in line.split("](").skip(1) {
            let target = rest.split([')', '#']).next().unwrap_or_default();
            if !target.is_empty() && !target.contains("://") {
                links.push((index + 1, target.to_owned()));
            }
        }
    }
    links
}

/// Words of the form `A-MKEY-1`.
fn cited_assumptions(text: &str) -> Vec<(usize, String)> {
    let mut cited = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for word in line.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')) {
            if let ["A", topic, number] = word.split('-').collect::<Vec<_>>()[..]
                && topic.starts_with(|c: char| c.is_ascii_uppercase())
                && topic.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit())
                && number.parse::<u32>().is_ok()
            {
                cited.push((index + 1, word.to_owned()));
            }
        }
    }
    cited
}

/// Code with comments, strings and characters blanked out; lines stay where they are.
fn code_only(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let in_word = code.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let blank = match first {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => block_comment_len(rest),
            '"' => string_len(rest),
            'r' | 'b' | 'c' if !in_word => raw_string_len(rest),
            '\'' => character_len(rest),
            _ => 0,
        };
        let (token, tail) = rest.split_at(if blank == 0 { first.len_utf8() } else { blank });
        if blank == 0 {
            code.push_str(token);
        } else {
            code.push(' ');
            code.extend(token.chars().filter(|c| *c == '\n'));
        }
        rest = tail;
    }
    code
}

fn block_comment_len(text: &str) -> usize {
    let bytes = text.as_bytes();
    let (mut depth, mut at) = (0, 0);
    while at + 1 < bytes.len() {
        match &bytes[at..at + 2] {
            b"/*" => (depth, at) = (depth + 1, at + 2),
            b"*/" if depth == 1 => return at + 2,
            b"*/" => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    text.len()
}

fn string_len(text: &str) -> usize {
    let mut escaped = false;
    for (index, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return index + 1,
            _ => {}
        }
    }
    text.len()
}

/// Length of `r"…"`, `r#"…"#` and the same with `b` or `c` before; 0 for anything else.
fn raw_string_len(text: &str) -> usize {
    let Some(body) = text.trim_start_matches(['b', 'c']).strip_prefix('r') else { return 0 };
    let hashes = body.len() - body.trim_start_matches('#').len();
    let Some(body) = body[hashes..].strip_prefix('"') else { return 0 };
    let end = format!("\"{}", "#".repeat(hashes));
    let start = text.len() - body.len();
    body.find(&end).map_or(text.len(), |at| start + at + end.len())
}

/// Length of a character literal; 0 for a lifetime.
fn character_len(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some(_)) => {
            chars.find(|(_, c)| *c == '\'').map_or(text.len(), |(index, _)| index + 1)
        }
        (Some(_), Some((index, '\''))) => index + 1,
        _ => 0,
    }
}

/// Code without the items marked `#[cfg(test)]`; lines stay where they are.
fn without_tests(code: &str) -> String {
    let mut kept = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(at) = rest.find("#[cfg(test)]") {
        let (before, item) = rest.split_at(at);
        kept.push_str(before);
        let len = item_len(item);
        kept.extend(item[..len].chars().filter(|c| *c == '\n'));
        rest = &item[len..];
    }
    kept + rest
}

/// Up to the semicolon or the closing brace that ends an item.
fn item_len(code: &str) -> usize {
    let mut depth = 0;
    for (index, c) in code.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth <= 1 => return index + 1,
            '}' => depth -= 1,
            ';' if depth == 0 => return index + 1,
            _ => {}
        }
    }
    code.len()
}

/// Every path in code, groups spelled out: `use std::{fs, net::X}` is `std::fs` and `std::net::X`.
fn paths(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut groups: Vec<String> = Vec::new();
    let (mut path, mut line) = (String::new(), 1);
    let mut chars = code.chars().peekable();
    while let Some(c) = chars.next() {
        if c.is_alphanumeric() || c == '_' {
            path.push(c);
        } else if c == ':' && chars.next_if_eq(&':').is_some() {
            path.push_str("::");
        } else {
            let opens_group = c == '{' && path.ends_with("::");
            if opens_group {
                groups.push(std::mem::take(&mut path));
            } else if !path.is_empty() {
                found.push((line, groups.concat() + &std::mem::take(&mut path)));
            }
            if c == '}' {
                groups.pop();
            }
        }
        line += usize::from(c == '\n');
    }
    found
}

// ---- Where the rules are applied.

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The root package and every crate.
fn crate_folders() -> Vec<PathBuf> {
    let mut folders = vec![root().to_owned()];
    folders.extend(entries(&root().join("crates")).into_iter().filter(|path| path.is_dir()));
    folders
}

fn all_rust_files() -> impl Iterator<Item = PathBuf> {
    let folders = ["src", "crates", "tests", "benches", "fuzz/fuzz_targets"];
    folders.into_iter().flat_map(|folder| rust_files(&root().join(folder)))
}

fn pages() -> Vec<PathBuf> {
    let all = entries(root()).into_iter().chain(files(&root().join("docs")));
    all.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

fn is_test(path: &Path) -> bool {
    let inside = path.strip_prefix(root()).unwrap_or(path);
    let in_folder = inside.components().any(|part| part.as_os_str() == "tests");
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    in_folder || stem == "tests" || stem.ends_with("_tests")
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let is_rust = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "rs");
    files(folder).into_iter().filter(is_rust).collect()
}

/// Every file below a folder, in order; none if there is no such folder. What cargo builds is left out.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in entries(folder) {
        if !path.is_dir() {
            found.push(path);
        } else if path.file_name().is_some_and(|name| name != "target") {
            found.extend(files(&path));
        }
    }
    found
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(listing) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = listing.map(|entry| entry.expect("a readable folder").path()).collect();
    paths.sort();
    paths
}

fn scan(files: impl IntoIterator<Item = PathBuf>, rule: impl Fn(&str) -> Findings) -> String {
    let mut findings = String::new();
    for path in files {
        for (line, finding) in rule(&read(&path)) {
            findings += &format!("{}:{line}: {finding}\n", relative(&path));
        }
    }
    findings
}

// ---- Tests of the rules.

#[test]
fn an_edge_that_is_not_in_the_table_is_found() {
    assert_eq!(check_edge("fabric-sim", "ib-wire", DependencyKind::Normal), Ok(()));
    let finding = check_edge("subnet-manager", "fabric-sim", DependencyKind::Normal).unwrap_err();
    assert!(finding.contains("docs/decisions/"), "{finding}");
    check_edge("fabric-compiler", "fabric-verifier", DependencyKind::Development).expect("tests may");
    check_edge("fabric-compiler", "fabric-verifier", DependencyKind::Normal).expect_err("code may not");
    check_edge("fabric-verifier", "fabric-compiler", DependencyKind::Development).expect("tests may");
    check_edge("fabric-verifier", "fabric-compiler", DependencyKind::Normal).expect_err("it is blind to it");
    check_edge("heddle", "node-agent", DependencyKind::Normal).expect_err("it links libvirt");
}

#[test]
fn lints_count_as_inherited_only_in_their_own_section() {
    assert!(inherits_lints("[package]\nname = \"x\"\n\n[lints]\nworkspace = true\n"));
    assert!(!inherits_lints("[package]\nname = \"x\"\n"));
    assert!(!inherits_lints("[lints]\n\n[dependencies]\nworkspace = true\n"));
}

#[test]
fn a_clock_or_socket_in_a_core_is_found_where_it_stands() {
    let found = |text: &str| -> Vec<usize> {
        names(&without_tests(&code_only(text))).into_iter().map(|(line, _)| line).collect()
    };
    assert_eq!(found("use std::time::Duration;\nuse std::time::Instant;\n"), [2]);
    assert_eq!(found("use std::{\n    fmt,\n    net::{IpAddr, UdpSocket},\n    fs,\n};\n"), [3, 3, 4]);
    assert_eq!(found("fn f() {\n    let x = std::thread::current();\n}\n"), [2]);
    assert_eq!(found("fn f() -> u8 {\n    rand::random()\n}"), [2]);
    assert_eq!(found("let t = SystemTime::now();"), [1]);
    assert_eq!(found("use std::net::Ipv6Addr;\nuse std::net::Ipv6Addrs;\nuse std::net;\n"), [2, 3]);
    assert_eq!(found("use rand_pcg::Pcg64Mcg;\nuse std::collections::{BTreeMap, HashMap};\n"), [0; 0]);
}

#[test]
fn words_in_comments_strings_and_tests_are_not_code() {
    let text = r##"
//! std::net, Instant
/* std::fs /* nested */ Instant */
const A: &str = "std::net \" Instant";
const B: &str = r#"todo!( " SystemTime"#;
const C: char = '"';
fn f<'a>(x: &'a str) {}
#[cfg(test)]
mod tests {
    fn g() { std::fs::read("x"); if true { } }
}
fn h() { Instant::now(); }
"##;
    let code = without_tests(&code_only(text));
    assert_eq!(names(&code).iter().map(|(line, _)| *line).collect::<Vec<_>>(), [12], "{code}");
    assert_eq!(leftovers(&code_only(text)), []);
}

#[test]
fn leftovers_and_long_files_are_found() {
    assert_eq!(leftovers("fn f() {\n    todo!()\n}").len(), 1);
    assert_eq!(leftovers("#[test]\n#[ignore = \"slow\"]\nfn t() {}")[0].0, 2);
    assert_eq!(length(&"x\n".repeat(FILE_LINES_MAX)), []);
    assert_eq!(length(&"x\n".repeat(FILE_LINES_MAX + 1)).len(), 1);
}

#[test]
fn links_and_citations_are_found_where_they_stand() {
    let text = "see [a](docs/a.md#part)\nand [b](https://example.org), A-MKEY-1, not A-x-1 or X-A-1";
    assert_eq!(links(text), [(1, "docs/a.md".to_owned())]);
    assert_eq!(cited_assumptions(text), [(2, "A-MKEY-1".to_owned())]);
}
