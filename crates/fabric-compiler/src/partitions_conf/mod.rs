//! Parser for the partitions file of OpenSM (`partitions.conf`), for the part of its syntax that sites use.
//!
//! ```text
//! [Name][=Key][,indx0][,ipoib[,rate=n][,mtu=n][,sl=n][,scope=n][,Q_Key=n]][,defmember=full|limited|both] :
//!     [member[=full|limited|both]] [, member[=...]] ... ;
//! ```
//!
//! A *member* is the GUID of an end port, or `ALL`, `ALL_CAS`, `ALL_SWITCHES`, `ALL_ROUTERS`, `SELF`. Numbers are decimal
//! or start with `0x`; `#` starts a comment that ends with the line. As in OpenSM, rules with the same key add up, a rule
//! without a key refers to the partition of that name, `Default` is 0x7fff, and if a port is named twice the later entry
//! counts.
//!
//! `both` gives both keys, as in OpenSM with `allow_both_pkeys`. OpenSM skips what it does not know; here every unknown or
//! abbreviated word is an error, because a member that is silently left out of a partition is worse than a rejected file.
//! Groups given by `mgid=` are not supported.

mod tokens;

use fabric_model::intent::{
    Ipoib, Member, MemberSelector, MulticastScope, PartitionIntent, PkeyPlacement, Role,
};
use ib_wire::{Guid, Mtu, PartitionNumber, Pkey, QKey, Rate, ServiceLevel};
use thiserror::Error;

use tokens::{Token, Tokens};

/// The largest file in bytes: more than a rule for each of 32,767 partitions and each port of the largest fabric.
pub const TEXT_BYTES_MAX: usize = 64 << 20;

/// The most rules in a file: two for each possible partition.
pub const RULES_MAX: usize = 65_536;

/// The longest name of a partition, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// A syntax error in a partitions file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}, column {column}: found {found}, expected {expected}")]
pub struct ConfError {
    pub line: u32,
    /// Line and column are counted from 1; columns in characters.
    pub column: u32,
    /// The token at this position.
    pub found: String,
    /// What is allowed there.
    pub expected: &'static str,
}

/// Parses a file into one partition intent per rule, in order. Fails at the first error.
pub fn parse(text: &str) -> Result<Vec<PartitionIntent>, ConfError> {
    if text.len() > TEXT_BYTES_MAX {
        let found = format!("{} bytes", text.len());
        return Err(ConfError { line: 1, column: 1, found, expected: "at most 64 MiB" });
    }
    let mut tokens = Tokens::of(text);
    let mut rules = Vec::new();
    while tokens.peek_token().0 != Token::End {
        if rules.len() == RULES_MAX {
            let found = tokens.take();
            return Err(tokens.error(found, "the end of the file: at most 65536 rules"));
        }
        rules.push(rule(&mut tokens)?);
    }
    Ok(rules)
}

/// The part of a rule before the colon.
#[derive(Debug)]
struct Header {
    name: String,
    number: Option<PartitionNumber>,
    place: PkeyPlacement,
    role: Role,
    is_ipoib: bool,
    ipoib: Ipoib,
    seen: Vec<Flag>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flag {
    IndexZero,
    Ipoib,
    Rate,
    Mtu,
    Sl,
    Scope,
    QKey,
    DefaultRole,
}

const FLAGS: &str = "a flag: indx0, ipoib, rate=, mtu=, sl=, scope=, Q_Key= or defmember= (groups by mgid= are not supported)";
const MEMBER: &str = "a port GUID, ALL, ALL_CAS, ALL_SWITCHES, ALL_ROUTERS or SELF";
const ROLE: &str = "full, limited or both";

fn rule(tokens: &mut Tokens<'_>) -> Result<PartitionIntent, ConfError> {
    let header = header(tokens)?;
    let members = members(tokens, &header)?;
    let Header { name, number, is_ipoib, ipoib, .. } = header;
    Ok(PartitionIntent { name, number, members, ipoib: is_ipoib.then_some(ipoib) })
}

fn header(tokens: &mut Tokens<'_>) -> Result<Header, ConfError> {
    let (name, number) = title(tokens)?;
    let mut header = Header {
        name,
        number,
        place: PkeyPlacement::Anywhere,
        role: Role::Limited,
        is_ipoib: false,
        ipoib: Ipoib::default(),
        seen: Vec::new(),
    };
    loop {
        match tokens.take() {
            Token::Sign(':') => return Ok(header),
            Token::Sign(',') => flag(tokens, &mut header)?,
            found => return Err(tokens.error(found, "',' and a flag, or ':' and the members")),
        }
    }
}

/// Parses name and key; one of them may be missing.
fn title(tokens: &mut Tokens<'_>) -> Result<(String, Option<PartitionNumber>), ConfError> {
    let mut name = String::new();
    let mut first = tokens.clone();
    while let Token::Word(word) = tokens.peek_token().0 {
        let is_first = name.is_empty();
        tokens.take();
        if name.len() + 1 + word.len() > NAME_BYTES_MAX || word.chars().any(char::is_control) {
            return Err(tokens.error(Token::Word(word), "a name of at most 64 printable characters"));
        }
        if !is_first {
            name.push(' ');
        }
        name.push_str(word);
    }
    if tokens.take_if('=') {
        return Ok((name, Some(key(tokens)?)));
    }
    if name.starts_with(|c: char| c.is_ascii_digit()) {
        // A rule may start with its key.
        let number = key(&mut first)?;
        if let Token::Word(word) = first.peek_token().0 {
            first.take();
            return Err(first.error(Token::Word(word), "'=', ',' or ':' behind a key"));
        }
        return Ok((String::new(), Some(number)));
    }
    if name.is_empty() {
        let found = tokens.take();
        return Err(tokens.error(found, "a partition's name, or '=' and its key"));
    }
    let number = (name == "Default").then_some(PartitionNumber::DEFAULT);
    Ok((name, number))
}

fn key(tokens: &mut Tokens<'_>) -> Result<PartitionNumber, ConfError> {
    let check = |raw| u16::try_from(raw).ok().and_then(Pkey::from_wire).map(Pkey::partition);
    value(tokens, "a P_Key: 1 to 0x7fff, or the same with 0x8000 added", check)
}

fn flag(tokens: &mut Tokens<'_>, header: &mut Header) -> Result<(), ConfError> {
    let found = tokens.take();
    let Token::Word(word) = found else { return Err(tokens.error(found, FLAGS)) };
    let flag = match word {
        "indx0" => Flag::IndexZero,
        "ipoib" => Flag::Ipoib,
        "rate" => Flag::Rate,
        "mtu" => Flag::Mtu,
        "sl" => Flag::Sl,
        "scope" => Flag::Scope,
        "Q_Key" => Flag::QKey,
        "defmember" => Flag::DefaultRole,
        _ => return Err(tokens.error(found, FLAGS)),
    };
    if header.seen.contains(&flag) {
        return Err(tokens.error(found, "each flag once in a rule"));
    }
    header.seen.push(flag);
    match flag {
        Flag::IndexZero => header.place = PkeyPlacement::First,
        Flag::Ipoib => header.is_ipoib = true,
        Flag::DefaultRole => {
            equals(tokens)?;
            header.role = role(tokens)?;
        }
        _ => {
            equals(tokens)?;
            setting(tokens, flag, &mut header.ipoib)?;
        }
    }
    Ok(())
}

/// Parses the value of a flag.
fn setting(tokens: &mut Tokens<'_>, flag: Flag, ipoib: &mut Ipoib) -> Result<(), ConfError> {
    let byte = |raw: u64| u8::try_from(raw).ok();
    match flag {
        Flag::Rate => {
            let check = |raw| byte(raw).map(Rate::from_wire).filter(|rate| rate.nominal_mbps() > 0);
            ipoib.rate = value(tokens, "the code of a rate, 2 to 24 (3 is 10 Gb/s, 16 is 100 Gb/s)", check)?;
        }
        Flag::Mtu => {
            let check = |raw| byte(raw).map(Mtu::from_wire).filter(|mtu| mtu.bytes() > 0);
            ipoib.mtu = value(tokens, "the code of an MTU, 1 to 5 (4 is 2048, 5 is 4096 bytes)", check)?;
        }
        Flag::Sl => {
            ipoib.sl =
                value(tokens, "a service level, 0 to 15", |raw| byte(raw).and_then(ServiceLevel::from_wire))?;
        }
        Flag::Scope => {
            let check = |raw| byte(raw).and_then(MulticastScope::from_wire);
            ipoib.scope = value(tokens, "a scope, 1 to 15 (2 is the subnet)", check)?;
        }
        Flag::QKey => {
            let check = |raw| u32::try_from(raw).ok().filter(|raw| *raw != 0).map(QKey::from_wire);
            ipoib.qkey = value(tokens, "a Q_Key, 1 to 0xffffffff", check)?;
        }
        Flag::IndexZero | Flag::Ipoib | Flag::DefaultRole => {}
    }
    Ok(())
}

fn members(tokens: &mut Tokens<'_>, header: &Header) -> Result<Vec<Member>, ConfError> {
    let mut members = Vec::new();
    loop {
        if tokens.take_if(';') {
            return Ok(members);
        }
        let line = member(tokens, header, &mut members)?;
        let (next, position) = tokens.peek_token();
        match next {
            Token::Sign(',') => {
                tokens.take();
            }
            Token::Sign(';') => {}
            // OpenSM reads line by line, so a new line separates members as well.
            Token::Word(_) if position.line > line => {}
            found => {
                tokens.take();
                return Err(tokens.error(found, "',' and a member, or ';'"));
            }
        }
    }
}

/// Parses one member; returns the line that it ends in.
fn member(tokens: &mut Tokens<'_>, header: &Header, members: &mut Vec<Member>) -> Result<u32, ConfError> {
    let found = tokens.take();
    let Token::Word(word) = found else { return Err(tokens.error(found, MEMBER)) };
    let who = match word {
        "ALL" => MemberSelector::All,
        "ALL_CAS" => MemberSelector::AllAdapters,
        "ALL_SWITCHES" => MemberSelector::AllSwitches,
        "ALL_ROUTERS" => MemberSelector::AllRouters,
        "SELF" => MemberSelector::Manager,
        _ => {
            let guid = number(word).and_then(Guid::from_wire);
            MemberSelector::Port(guid.ok_or_else(|| tokens.error(found, MEMBER))?)
        }
    };
    let role = if tokens.take_if('=') { role(tokens)? } else { header.role };
    members.push(Member { selector: who, role, placement: header.place });
    Ok(tokens.position.line)
}

fn role(tokens: &mut Tokens<'_>) -> Result<Role, ConfError> {
    match tokens.take() {
        Token::Word("full") => Ok(Role::Full),
        Token::Word("limited") => Ok(Role::Limited),
        Token::Word("both") => Ok(Role::Both),
        found => Err(tokens.error(found, ROLE)),
    }
}

fn equals(tokens: &mut Tokens<'_>) -> Result<(), ConfError> {
    match tokens.take() {
        Token::Sign('=') => Ok(()),
        found => Err(tokens.error(found, "'=' and a value")),
    }
}

/// Parses a number and converts it by `check`.
fn value<T>(
    tokens: &mut Tokens<'_>,
    expected: &'static str,
    check: impl Fn(u64) -> Option<T>,
) -> Result<T, ConfError> {
    let found = tokens.take();
    let raw = match found {
        Token::Word(word) => number(word),
        _ => None,
    };
    raw.and_then(check).ok_or_else(|| tokens.error(found, expected))
}

/// Parses a hexadecimal number with `0x`, or a decimal one. A leading 0 without x is rejected: OpenSM reads it as octal,
/// people as decimal.
fn number(word: &str) -> Option<u64> {
    let digits = |text: &str, radix| {
        let plain = !text.is_empty() && text.chars().all(|c| c.is_digit(radix));
        plain.then(|| u64::from_str_radix(text, radix).ok()).flatten()
    };
    match word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
        Some(hexadecimal) => digits(hexadecimal, 16),
        None if word.len() > 1 && word.starts_with('0') => None,
        None => digits(word, 10),
    }
}

#[cfg(test)]
mod tests;
