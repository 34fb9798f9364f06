//! The controller that commands connect to, and the token they send.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::Args;
use controller_api::{ApiClient, ControllerAddress, TrustedUsers};

use super::output::Format;

/// Default state directory of `heddle up`.
pub const DEFAULT_HOME: &str = "/var/lib/heddle";

/// The socket of the controller in that directory.
pub const API_SOCKET: &str = "api/heddle.sock";

/// The file in that directory with the loopback address of the controller, if it has one. Commands do not use it: a
/// program that listens at a stale address would receive tokens.
pub const ENDPOINT_FILE: &str = "endpoint";

/// The file in that directory that holds the token of the first operator.
pub const OPERATOR_TOKEN_FILE: &str = "operator.token";

/// Longest token or address in bytes; a longer file is not one.
const LINE_BYTES_MAX: u64 = 4096;

/// Arguments of every command that connects to the controller.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Controller")]
pub struct SiteArgs {
    /// Address of the controller: unix:/PATH or http://HOST:PORT [env: HEDDLE_URL] [default: that of `heddle up`]
    ///
    /// The token is sent to a unix socket only if its server runs as root, as you, or as the user of --controller-uid. It is
    /// sent to an http:// address unchecked and unencrypted: use one only if you trust its server, such as your own tunnel.
    #[arg(long, global = true, value_name = "URL")]
    url: Option<ControllerAddress>,
    /// Additional user id that is trusted to serve the unix socket [env: HEDDLE_CONTROLLER_UID]
    #[arg(long, global = true, value_name = "UID")]
    controller_uid: Option<u32>,
    /// File with an API token [env: HEDDLE_TOKEN, HEDDLE_TOKEN_FILE] [default: that of the operator of `heddle up`]
    #[arg(long, global = true, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Output format
    #[arg(short, long, global = true, value_enum, default_value_t)]
    output: Format,
}

/// A controller and the token for it.
#[derive(PartialEq, Eq)]
struct Connection {
    endpoint: ControllerAddress,
    trusted: TrustedUsers,
    token: String,
}

impl SiteArgs {
    /// Connects to the controller of a state directory.
    pub fn of_home(home: &Path) -> anyhow::Result<ApiClient> {
        let site = Self::default();
        let home = home.as_os_str().to_owned();
        site.connect(|name| (name == "HEDDLE_HOME").then(|| home.clone()))
    }

    /// Connects to the controller of the arguments and the environment.
    pub fn client(&self) -> anyhow::Result<ApiClient> {
        self.connect(|name| env::var_os(name))
    }

    pub fn format(&self) -> Format {
        self.output
    }

    /// These arguments for a command that this one starts. A token in the environment is inherited.
    pub fn to_arguments(&self) -> Vec<OsString> {
        let url = self.url.iter().flat_map(|url| ["--url".into(), url.to_string().into()]);
        let uid =
            self.controller_uid.iter().flat_map(|uid| ["--controller-uid".into(), uid.to_string().into()]);
        let token_file = self.token_file.iter().flat_map(|file| ["--token-file".into(), file.into()]);
        url.chain(uid).chain(token_file).collect()
    }

    fn connect(&self, environment: impl Fn(&str) -> Option<OsString>) -> anyhow::Result<ApiClient> {
        let Connection { endpoint, trusted, token } = self.resolve(environment)?;
        Ok(ApiClient::new(endpoint, trusted, token))
    }

    fn resolve(&self, environment: impl Fn(&str) -> Option<OsString>) -> anyhow::Result<Connection> {
        let home = environment("HEDDLE_HOME").map_or_else(|| PathBuf::from(DEFAULT_HOME), PathBuf::from);
        let home = std::path::absolute(home).context("HEDDLE_HOME is not a path")?;
        let local = ControllerAddress::Unix(home.join(API_SOCKET));
        let endpoint = match (&self.url, text(environment("HEDDLE_URL"), "HEDDLE_URL")?) {
            (Some(url), _) => url.clone(),
            (None, Some(url)) => url.parse().context("HEDDLE_URL")?,
            (None, None) => {
                let socket = home.join(API_SOCKET);
                ensure!(
                    socket.exists(),
                    "no controller found: {} does not exist. Start one with `heddle up`, or name one with --url or HEDDLE_URL",
                    socket.display()
                );
                local.clone()
            }
        };
        let uid =
            match (self.controller_uid, text(environment("HEDDLE_CONTROLLER_UID"), "HEDDLE_CONTROLLER_UID")?)
            {
                (Some(uid), _) => Some(uid),
                (None, Some(uid)) => {
                    Some(uid.parse().context("HEDDLE_CONTROLLER_UID must be a numeric user id")?)
                }
                (None, None) => None,
            };
        let token = match (&self.token_file, text(environment("HEDDLE_TOKEN"), "HEDDLE_TOKEN")?) {
            (Some(file), _) => read_token(file)?,
            (None, Some(token)) => token.trim().to_owned(),
            (None, None) => match environment("HEDDLE_TOKEN_FILE") {
                Some(file) => read_token(Path::new(&file))?,
                // The operator's token of this machine is not sent to controllers elsewhere.
                None if endpoint == local => read_token(&home.join(OPERATOR_TOKEN_FILE))?,
                None => {
                    bail!("{endpoint} needs a token: use --token-file, HEDDLE_TOKEN_FILE or HEDDLE_TOKEN")
                }
            },
        };
        ensure!(
            !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()),
            "the token must be one line of printable ASCII characters"
        );
        Ok(Connection { endpoint, trusted: TrustedUsers::new(uid), token })
    }
}

fn text(value: Option<OsString>, name: &str) -> anyhow::Result<Option<String>> {
    let value = value.filter(|value| !value.is_empty());
    // The value may be a secret, so it is not printed.
    value.map(|value| value.into_string().ok().with_context(|| format!("{name} is not UTF-8"))).transpose()
}

fn read_token(path: &Path) -> anyhow::Result<String> {
    let place = path.display();
    let found = fs::metadata(path).with_context(|| format!("cannot read the token in {place}"))?;
    let mode = found.permissions().mode();
    // Only regular files have a meaningful mode.
    ensure!(
        !found.is_file() || mode & 0o077 == 0,
        "{place} can be read by others (mode {:o}): chmod 600 {place}",
        mode & 0o777
    );
    read_line(path)
}

fn read_line(path: &Path) -> anyhow::Result<String> {
    use std::io::Read;

    let place = path.display();
    let mut text = String::new();
    let file = fs::File::open(path).with_context(|| format!("cannot open {place}"))?;
    file.take(LINE_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .with_context(|| format!("cannot read {place}"))?;
    ensure!(
        text.len() as u64 <= LINE_BYTES_MAX,
        "{place} must hold one line of at most {LINE_BYTES_MAX} bytes"
    );
    Ok(text.trim().to_owned())
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// A directory as `heddle up` leaves it.
    fn home() -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        let socket = home.path().join(API_SOCKET);
        fs::create_dir(socket.parent().unwrap()).unwrap();
        std::os::unix::net::UnixListener::bind(socket).unwrap();
        write_token(&home.path().join(OPERATOR_TOKEN_FILE), "operator-secret", 0o600);
        home
    }

    fn write_token(path: &Path, token: &str, mode: u32) {
        fs::write(path, format!("{token}\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn resolve(site: &SiteArgs, home: &Path, variables: &[(&str, &str)]) -> Result<(String, String), String> {
        let mut variables: BTreeMap<&str, OsString> =
            variables.iter().map(|(name, value)| (*name, OsString::from(value))).collect();
        variables.insert("HEDDLE_HOME", home.into());
        let found = site.resolve(|name| variables.get(name).cloned());
        found.map(|it| (it.endpoint.to_string(), it.token)).map_err(|error| format!("{error:#}"))
    }

    fn local(home: &Path) -> String {
        format!("unix:{}", home.join(API_SOCKET).display())
    }

    fn both(url: &str, token: &str) -> Result<(String, String), String> {
        Ok((url.to_owned(), token.to_owned()))
    }

    #[test]
    fn a_running_heddle_up_needs_no_arguments() {
        let home = home();
        let found = resolve(&SiteArgs::default(), home.path(), &[]);
        assert_eq!(found, both(&local(home.path()), "operator-secret"));
    }

    #[test]
    fn arguments_override_the_environment_and_files() {
        let home = home();
        let file = home.path().join("blue.token");
        write_token(&file, "from-file", 0o600);
        let variables = [("HEDDLE_URL", "http://127.0.0.1:1/"), ("HEDDLE_TOKEN", "from-variable")];
        let found = resolve(&SiteArgs::default(), home.path(), &variables);
        assert_eq!(found, both("http://127.0.0.1:1", "from-variable"));
        let variables = [("HEDDLE_TOKEN_FILE", file.to_str().unwrap())];
        let found = resolve(&SiteArgs::default(), home.path(), &variables);
        assert_eq!(found, both(&local(home.path()), "from-file"));
        let site = SiteArgs {
            url: Some("http://127.0.0.1:2".parse().unwrap()),
            token_file: Some(file),
            ..SiteArgs::default()
        };
        let found = resolve(&site, home.path(), &[("HEDDLE_TOKEN", "from-variable")]);
        assert_eq!(found, both("http://127.0.0.1:2", "from-file"));
    }

    #[test]
    fn the_operators_token_is_not_shown_elsewhere() {
        let home = home();
        let elsewhere = SiteArgs { url: Some("http://127.0.0.1:9".parse().unwrap()), ..SiteArgs::default() };
        let error = resolve(&elsewhere, home.path(), &[]).unwrap_err();
        assert!(error.contains("--token-file"), "{error}");
        let here = SiteArgs { url: Some(local(home.path()).parse().unwrap()), ..SiteArgs::default() };
        assert_eq!(resolve(&here, home.path(), &[]), both(&local(home.path()), "operator-secret"));
    }

    #[test]
    fn a_token_that_others_can_read_is_refused_and_not_told() {
        let home = home();
        let file = home.path().join(OPERATOR_TOKEN_FILE);
        write_token(&file, "operator-secret", 0o644);
        let error = resolve(&SiteArgs::default(), home.path(), &[]).unwrap_err();
        assert!(error.contains("chmod 600") && !error.contains("operator-secret"), "{error}");
        write_token(&file, "two words", 0o600);
        let error = resolve(&SiteArgs::default(), home.path(), &[]).unwrap_err();
        assert!(error.contains("one line") && !error.contains("two words"), "{error}");
    }

    #[test]
    fn without_a_controller_it_says_how_to_get_one() {
        let empty = tempfile::tempdir().unwrap();
        let error = resolve(&SiteArgs::default(), empty.path(), &[]).unwrap_err();
        assert!(error.contains("heddle up") && error.contains("--url"), "{error}");
        let variables = [("HEDDLE_TOKEN", "x"), ("HEDDLE_URL", "https://example.org")];
        let error = resolve(&SiteArgs::default(), empty.path(), &variables).unwrap_err();
        assert!(error.contains("http://"), "{error}");
    }
}
