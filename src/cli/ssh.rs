//! `heddle cluster ssh`: a shell in a node, through the controller, because no network leads there.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail, ensure};
use clap::Args;
use controller_api::ApiClient;
use controller_api::cluster::NodeState;
use controller_api::session::NewSession;

use super::cluster::ClusterArgs;
use super::connection::SiteArgs;
use super::exec;

#[derive(Debug, Args)]
pub struct SshArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Number of the node, from 1
    #[arg(long, value_name = "N", default_value_t = 1)]
    node: u32,
    /// Additional arguments of ssh: options, or a command to run
    #[arg(last = true, value_name = "ARGS")]
    arguments: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct ProxyArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Number of the node, from 1
    #[arg(long, value_name = "N", default_value_t = 1)]
    node: u32,
}

/// Execs ssh.
pub async fn run(client: &ApiClient, site: &SiteArgs, args: SshArgs) -> anyhow::Result<ExitCode> {
    let cluster = args.cluster.to_ref()?;
    let found = client.cluster_show(&cluster).await?;
    let node = found.nodes.iter().find(|node| node.number == args.node);
    let node = node.with_context(|| {
        let numbers: Vec<String> = found.nodes.iter().map(|node| node.number.to_string()).collect();
        format!("{} has no node {}; its nodes are {}", found.name, args.node, numbers.join(", "))
    })?;
    ensure!(
        node.state == NodeState::Ready,
        "{} is {}, not ready: see `heddle cluster show {}`",
        node.name,
        node.state,
        found.name
    );
    let host_key = found
        .host_key
        .as_deref()
        .with_context(|| format!("the controller did not send the ssh host key of {}", found.name))?;
    let heddle = std::env::current_exe().context("cannot find the path of this program")?;
    let mut proxy: Vec<OsString> = vec![heddle.into(), "cluster".into(), "proxy".into()];
    proxy.extend(site.to_arguments());
    proxy.extend(["--node".into(), args.node.to_string().into()]);
    if let Some(tenant) = &cluster.tenant {
        proxy.extend(["--tenant".into(), tenant.as_str().into()]);
    }
    proxy.extend(["--".into(), cluster.name.as_str().into()]);
    let options = options(&proxy, &node.name, host_key)?;
    let error = Command::new("ssh").args(options).args(args.arguments).exec();
    bail!("cannot start ssh ({error}): install the package openssh-client")
}

/// Forwards standard input and output to the ssh server of a node.
pub async fn proxy(client: &ApiClient, args: ProxyArgs) -> anyhow::Result<ExitCode> {
    let stream = client.session(&args.cluster.to_ref()?, args.node, &NewSession::Ssh {}).await?;
    let status = exec::carry(stream, Some(tokio::io::stdin()), |stream, bytes| stream.write(bytes)).await?;
    Ok(exec::exit_code(status))
}

/// Options of ssh: the proxy command, and the host key to expect.
fn options(proxy: &[OsString], node: &str, host_key: &str) -> anyhow::Result<Vec<OsString>> {
    let mut command = OsString::from("ProxyCommand=");
    command.push(shell_words(proxy));
    let mut options = Vec::new();
    // Only the key that the controller put into the node: known-hosts files would only remember nodes that are gone.
    let known = OsString::from(format!("KnownHostsCommand=/bin/echo {}", known_host(node, host_key)?));
    let fixed = [
        "StrictHostKeyChecking=yes",
        "UserKnownHostsFile=/dev/null",
        "GlobalKnownHostsFile=/dev/null",
        "HostKeyAlgorithms=ssh-ed25519",
        "LogLevel=ERROR",
        // Cheap in a guest under TCG; other algorithms stay possible.
        "KexAlgorithms=^curve25519-sha256",
    ];
    for option in [command, known].into_iter().chain(fixed.map(OsString::from)) {
        options.extend(["-o".into(), option]);
    }
    options.extend(["-o".into(), format!("HostKeyAlias={node}").into(), format!("root@{node}").into()]);
    Ok(options)
}

/// A line in known_hosts format with the host key of a node. Both texts come from the controller and become part of a
/// command, so their format is checked.
fn known_host(node: &str, host_key: &str) -> anyhow::Result<String> {
    let mut words = host_key.split_ascii_whitespace();
    let (kind, body) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let is_name = node.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let is_body = body.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte));
    ensure!(
        kind == "ssh-ed25519" && !body.is_empty() && is_body && is_name,
        "the host key of {node:?} must be of the kind ssh-ed25519, got {host_key:?}"
    );
    Ok(format!("{node} {kind} {body}"))
}

/// Quotes words for a shell, with % doubled so that ssh expands no tokens.
fn shell_words(words: &[OsString]) -> OsString {
    let quoted: Vec<Vec<u8>> = words.iter().map(|word| quote(word)).collect();
    OsString::from_vec(quoted.join(&b' '))
}

fn quote(word: &OsStr) -> Vec<u8> {
    let mut quoted = vec![b'\''];
    for byte in word.as_bytes() {
        match byte {
            b'\'' => quoted.extend(b"'\\''"),
            b'%' => quoted.extend(b"%%"),
            byte => quoted.push(*byte),
        }
    }
    quoted.push(b'\'');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_the_words_that_were_meant() {
        let words = ["/opt/my heddle", "it's", "50%", "$HOME", ""].map(OsString::from);
        let line = shell_words(&words).into_string().unwrap().replace("%%", "%");
        let script = format!("printf '%s\\n' {line}");
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "/opt/my heddle\nit's\n50%\n$HOME\n\n");
    }

    #[test]
    fn ssh_takes_the_options() {
        let proxy = ["heddle", "cluster", "proxy"].map(OsString::from);
        // -G prints the configuration and exits.
        let options = options(&proxy, "blue-1", "ssh-ed25519 AAAAC3Nza+/= heddle").unwrap();
        let output = Command::new("ssh").arg("-G").args(options).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        for line in [
            "user root",
            "hostkeyalias blue-1",
            "proxycommand 'heddle' 'cluster' 'proxy'",
            "stricthostkeychecking true",
            "userknownhostsfile /dev/null",
            "knownhostscommand /bin/echo blue-1 ssh-ed25519 AAAAC3Nza+/=",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        }
    }

    #[test]
    fn a_host_key_that_is_none_reaches_no_command() {
        for wrong in ["", "ssh-ed25519", "ssh-rsa AAAA", "ssh-ed25519 AA%h", "ssh-ed25519 \"; touch /tmp/x\""]
        {
            assert!(known_host("blue-1", wrong).is_err(), "{wrong}");
        }
        assert!(known_host("blue 1", "ssh-ed25519 AAAA").is_err());
    }
}
