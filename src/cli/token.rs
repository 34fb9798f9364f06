//! `heddle token`: manages API tokens.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use controller_api::Name;
use controller_api::tenant::{NewToken, Token, TokenLifetime};
use jiff::Timestamp;

use super::Noun;
use super::output::{age, or_dash, print, table, time};

/// Commands of `heddle token`. A tenant manages its own tokens, operators manage all.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Create a token and print its secret; it cannot be printed again
    #[command(after_help = "Examples:
  heddle token create --tenant acme --name ci --expires 30d --save acme.token
  HEDDLE_TOKEN_FILE=acme.token heddle cluster list")]
    Create(CreateArgs),
    /// List tokens, without their secrets
    #[command(after_help = "Example:
  heddle token list")]
    List,
    /// Revoke a token and end its open sessions, such as shells in nodes
    #[command(after_help = "Example:
  heddle token revoke 6f1b7c7e-3b1c-4b8e-9f0e-0a4d8f4b2a11")]
    Revoke {
        /// Id of the token; see `heddle token list`
        id: uuid::Uuid,
    },
}

#[derive(Debug, Args)]
pub struct CreateArgs {
    /// Tenant that the token is for; required for operators only
    #[arg(long, conflicts_with = "operator")]
    tenant: Option<Name>,
    /// Create a token with all rights
    #[arg(long)]
    operator: bool,
    /// Name of the token [default: derived from its id]
    #[arg(long)]
    name: Option<Name>,
    /// Lifetime: a number with s, h or d, such as 30d, or never
    #[arg(long, value_name = "TIME", default_value = "90d", value_parser = lifetime)]
    expires: TokenLifetime,
    /// Write the secret to this new file, with mode 600, instead of printing it
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
}

pub async fn run(noun: Noun<TokenCommand>) -> anyhow::Result<ExitCode> {
    let (client, format) = (noun.site.client()?, noun.site.format());
    match noun.command {
        TokenCommand::Create(CreateArgs { tenant, operator, name, expires: lifetime, save }) => {
            // The file is created first, so that no secret is lost.
            let file =
                save.as_deref().map(|path| create_private(path).map(|file| (file, path))).transpose()?;
            let issued = match client.token_create(&NewToken { name, lifetime, tenant, operator }).await {
                Ok(issued) => issued,
                Err(error) => {
                    if let Some((_, path)) = file {
                        // The error of the controller matters more than one of this removal.
                        let _ = fs::remove_file(path);
                    }
                    return Err(error.into());
                }
            };
            match file {
                Some((mut file, path)) => {
                    writeln!(file, "{}", issued.secret)
                        .with_context(|| format!("cannot write {}", path.display()))?;
                    let saved = |token: &Token| format!("token {} is in {}", token.id, path.display());
                    format.print(&issued.token, saved)?;
                }
                None => format.print(&issued, |issued| issued.secret.clone())?,
            }
        }
        TokenCommand::List => {
            let now = Timestamp::now();
            format.print(&client.token_list().await?, |tokens| {
                let rows = tokens.iter().map(|token| {
                    let whose =
                        token.tenant.as_ref().map_or_else(|| "(operator)".to_owned(), Name::to_string);
                    let expires = token.expires.map_or_else(|| "never".to_owned(), time);
                    let used = or_dash(token.last_used.map(|at| age(at, now)));
                    [
                        token.id.to_string(),
                        token.name.to_string(),
                        whose,
                        age(token.created, now),
                        expires,
                        used,
                    ]
                });
                table(["id", "name", "tenant", "age", "expires", "last used"], rows)
            })?;
        }
        TokenCommand::Revoke { id } => {
            client.token_revoke(id).await?;
            if format.is_for_people() {
                print(&format!("token {id} revoked"))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Parses a lifetime such as `30d`, or `never`.
fn lifetime(text: &str) -> Result<TokenLifetime, String> {
    let wrong = || format!("expected a number with s, h or d, such as 30d, or never; got {text:?}");
    if text == "never" {
        return Ok(TokenLifetime::Never);
    }
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(wrong)?;
    let seconds = match unit {
        "s" => 1,
        "h" => 60 * 60,
        "d" => 24 * 60 * 60,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(seconds).filter(|it| *it > 0).map(TokenLifetime::Seconds).ok_or_else(wrong)
}

/// A new file that only its owner can read.
fn create_private(path: &Path) -> anyhow::Result<fs::File> {
    let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    file.with_context(|| format!("cannot create {}: it must be a new file", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn lifetimes_are_numbers_with_a_unit() {
        assert_eq!(lifetime("never"), Ok(TokenLifetime::Never));
        assert_eq!(lifetime("90d"), Ok(TokenLifetime::DEFAULT));
        assert_eq!(lifetime("2h"), Ok(TokenLifetime::Seconds(7200)));
        for wrong in ["", "d", "0d", "-1d", "5w", "1ä", "99999999999999999999d"] {
            assert!(lifetime(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_secret_is_saved_to_a_new_private_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("acme.token");
        drop(create_private(&path).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(create_private(&path).is_err(), "an existing file is not overwritten");
    }
}
