//! `heddle smp`: writes one entry of one table, for drills.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use clap::{Args, Subcommand};
use ib_transport::{Device, DeviceSpec, Received, application_transaction};
use ib_wire::{
    Attribute, Datagram, ForwardingBlock, Guid, Lid, MKey, Mad, ManagementClass, Method, Pkey, PkeyBlock,
    PkeyPosition, PortNum, SMP_DATA_LEN, Status, TransactionId,
};

/// Write one table entry of one node, for drills: a manager that watches finds it and repairs it.
///
/// The node is asked by its LID, under the key that the site secret gives it. To take a key away from a port, and a route
/// from a switch:
///
///     heddle smp --device heddle:fabric.sock@host-00001 --secret site.secret set-pkey 0x2c90300100010 2 --index 1
///     heddle smp --device heddle:fabric.sock@host-00001 --secret site.secret set-lft 0x2c90300200000 17 --to 2
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct SmpArgs {
    /// Where the fabric is: `umad:N`, `ibsim:NAME[@NODE]` or `heddle:SOCKET[@NODE]`.
    #[arg(long)]
    device: DeviceSpec,
    /// The site secret, if the node is under a key.
    #[arg(long)]
    secret: Option<PathBuf>,
    #[command(subcommand)]
    write: Write,
}

#[derive(Debug, Subcommand)]
enum Write {
    /// Write an entry of a P_Key table.
    SetPkey {
        #[command(flatten)]
        node: NodeArgs,
        /// Which entry.
        #[arg(long)]
        index: u16,
        /// The key, such as 0x8001; without it the entry becomes empty.
        #[arg(long)]
        pkey: Option<Pkey>,
        /// An external port of a switch; without it, the port that has the LID.
        #[arg(long)]
        port: Option<PortNum>,
    },
    /// Write an entry of the linear forwarding table of a switch.
    SetLft {
        #[command(flatten)]
        node: NodeArgs,
        /// The LID that packets are for.
        #[arg(long, value_parser = lid)]
        to: Lid,
        /// The port they leave by; without it they go nowhere.
        #[arg(long)]
        exit: Option<PortNum>,
    },
}

#[derive(Debug, Args)]
struct NodeArgs {
    /// The node GUID, which its key depends on.
    node: Guid,
    /// Its LID.
    #[arg(value_parser = lid)]
    lid: Lid,
}

/// How long an answer may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

pub fn run(args: SmpArgs) -> anyhow::Result<()> {
    let secret = args.secret.as_deref().map(crate::sm::read_secret).transpose()?;
    let (Write::SetPkey { node, .. } | Write::SetLft { node, .. }) = &args.write;
    let key = secret.map(|secret| secret.key(node.node));
    let mut node = Node { device: Device::open(&args.device)?, lid: node.lid, key, asked: 0 };
    let (before, after) = match args.write {
        Write::SetPkey { index, pkey, port, .. } => {
            let (block, place) = (index / PkeyBlock::ENTRIES as u16, usize::from(index) % PkeyBlock::ENTRIES);
            let port = port.map_or(0, |port| port.to_wire().into());
            let what = (Attribute::PKEY_TABLE, PkeyPosition { port, block }.to_modifier());
            let mut keys = PkeyBlock::decode(&node.ask(Method::GET, what, [0; SMP_DATA_LEN])?);
            let before = std::mem::replace(&mut keys.0[place], pkey);
            node.set(what, keys.encode())?;
            let shown = |key: Option<Pkey>| key.map_or("none".to_owned(), |key| key.to_string());
            (shown(before), shown(pkey))
        }
        Write::SetLft { to, exit, .. } => {
            let (block, place) = (
                to.to_wire() / ForwardingBlock::ENTRIES as u16,
                usize::from(to.to_wire()) % ForwardingBlock::ENTRIES,
            );
            let what = (Attribute::LINEAR_FORWARDING, block.into());
            let mut exits = ForwardingBlock::decode(&node.ask(Method::GET, what, [0; SMP_DATA_LEN])?);
            let before = std::mem::replace(&mut exits.0[place], exit);
            node.set(what, exits.encode())?;
            let shown = |exit: Option<PortNum>| exit.map_or("none".to_owned(), |exit| format!("port {exit}"));
            (shown(before), shown(exit))
        }
    };
    crate::say(format_args!("{before} became {after}"))
}

/// A node that is asked by its LID.
struct Node {
    device: Device,
    lid: Lid,
    key: Option<MKey>,
    asked: u32,
}

impl Node {
    fn set(&mut self, what: (Attribute, u32), data: [u8; SMP_DATA_LEN]) -> anyhow::Result<()> {
        ensure!(self.ask(Method::SET, what, data)? == data, "the node did not take it");
        Ok(())
    }

    fn ask(
        &mut self,
        method: Method,
        (attribute, modifier): (Attribute, u32),
        data: [u8; SMP_DATA_LEN],
    ) -> anyhow::Result<[u8; SMP_DATA_LEN]> {
        let own = self.device.lid()?.context("the port of --device has no LID yet")?;
        self.asked += 1;
        let mut mad = Mad::new(ManagementClass::SUBNET_LID, method, attribute, modifier);
        mad.set_transaction(TransactionId(self.asked.into()));
        mad.set_m_key(self.key);
        *mad.smp_data_mut() = data;
        self.device.send(&Datagram::subnet_management(own.into(), self.lid.into(), mad))?;
        let answer =
            self.answer().with_context(|| format!("{attribute:?} of the node at LID {}", self.lid))?;
        match answer.status() {
            Status::OK => Ok(*answer.smp_data()),
            status => bail!("{attribute:?} of the node at LID {} is refused: {status:?}", self.lid),
        }
    }

    fn answer(&mut self) -> anyhow::Result<Mad> {
        let silent = || anyhow!("no answer: nobody is there, or it is under another key");
        let deadline = Instant::now() + ANSWER_LIMIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.device.receive(left)?.ok_or_else(silent)? {
                Received::Lost(id) if application_transaction(id) == self.asked => return Err(silent()),
                Received::Datagram(datagram)
                    if datagram.mad.method().is_response()
                        && application_transaction(datagram.mad.transaction()) == self.asked =>
                {
                    return Ok(datagram.mad);
                }
                _ => {}
            }
        }
    }
}

fn lid(text: &str) -> Result<Lid, String> {
    let found = text.parse().ok().and_then(Lid::from_wire);
    found.ok_or_else(|| format!("{text:?} is not a LID: 1 to 49151"))
}
