//! `heddle smp`: writes one table entry of one node, to inject drift.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use clap::{Args, Subcommand};
use ib_transport::{Device, DeviceSpec, Received, application_transaction};
use ib_wire::{
    Attribute, Datagram, ForwardingBlock, Guid, Lid, MKey, Mad, ManagementClass, Method, Pkey, PkeyBlock,
    PkeyBlockSelector, PortNum, SMP_DATA_LEN, Status, TransactionId,
};

/// Write one table entry of one node, to inject drift that a running subnet manager has to find and repair.
///
/// Sends LID-routed SMPs, with the M_Key derived from the site secret. To remove a P_Key from a port and a route from a
/// switch:
///
///     heddle smp --device heddle:fabric.sock@host-00001 --secret site.secret set-pkey 0x2c90300100010 2 --index 1
///     heddle smp --device heddle:fabric.sock@host-00001 --secret site.secret set-lft 0x2c90300200000 17 --to 2
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct SmpArgs {
    /// Device to reach the fabric through: `umad:N`, `ibsim:NAME[@NODE]` or `heddle:SOCKET[@NODE]`.
    #[arg(long)]
    device: DeviceSpec,
    /// Site secret that the M_Key of the node is derived from, if it has one.
    #[arg(long)]
    secret: Option<PathBuf>,
    /// Epoch of the M_Key, as `heddle sm status` shows it.
    #[arg(long, value_name = "N", default_value_t = 0)]
    epoch: u32,
    #[command(subcommand)]
    write: Write,
}

#[derive(Debug, Subcommand)]
enum Write {
    /// Write an entry of a P_Key table.
    SetPkey {
        #[command(flatten)]
        node: NodeArgs,
        /// Index of the entry in the P_Key table.
        #[arg(long)]
        index: u16,
        /// P_Key to write, such as 0x8001; without it the entry is cleared.
        #[arg(long)]
        pkey: Option<Pkey>,
        /// External port of a switch; without it, the port that has the LID.
        #[arg(long)]
        port: Option<PortNum>,
    },
    /// Write an entry of the linear forwarding table of a switch.
    SetLft {
        #[command(flatten)]
        node: NodeArgs,
        /// Destination LID whose entry is written, 1 to 49151.
        #[arg(long, value_parser = lid)]
        to: Lid,
        /// Exit port to write; without it packets to that LID are dropped.
        #[arg(long)]
        exit: Option<PortNum>,
    },
}

#[derive(Debug, Args)]
struct NodeArgs {
    /// GUID of the node; its M_Key is derived from it.
    node: Guid,
    /// LID of the node, 1 to 49151.
    #[arg(value_parser = lid)]
    lid: Lid,
}

/// Longest time to wait for a reply.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

pub fn run(args: SmpArgs) -> anyhow::Result<()> {
    let secret = args.secret.as_deref().map(crate::sm::read_secret).transpose()?;
    let (Write::SetPkey { node, .. } | Write::SetLft { node, .. }) = &args.write;
    let key = secret.map(|secret| secret.key(node.node, args.epoch));
    let mut node = Node { device: Device::open(&args.device)?, lid: node.lid, key, requests: 0 };
    let (before, after) = match args.write {
        Write::SetPkey { index, pkey, port, .. } => {
            let (block, entry) = (index / PkeyBlock::ENTRIES as u16, usize::from(index) % PkeyBlock::ENTRIES);
            let port = port.map_or(0, |port| port.to_wire().into());
            let target = (Attribute::PKEY_TABLE, PkeyBlockSelector { port, block }.to_modifier());
            let mut keys = PkeyBlock::decode(&node.request(Method::GET, target, [0; SMP_DATA_LEN])?);
            let before = std::mem::replace(&mut keys.0[entry], pkey);
            node.set(target, keys.encode())?;
            let shown = |key: Option<Pkey>| key.map_or("none".to_owned(), |key| key.to_string());
            (shown(before), shown(pkey))
        }
        Write::SetLft { to, exit, .. } => {
            let (block, entry) = (
                to.to_wire() / ForwardingBlock::ENTRIES as u16,
                usize::from(to.to_wire()) % ForwardingBlock::ENTRIES,
            );
            let target = (Attribute::LINEAR_FORWARDING, block.into());
            let mut exits = ForwardingBlock::decode(&node.request(Method::GET, target, [0; SMP_DATA_LEN])?);
            let before = std::mem::replace(&mut exits.0[entry], exit);
            node.set(target, exits.encode())?;
            let shown = |exit: Option<PortNum>| exit.map_or("none".to_owned(), |exit| format!("port {exit}"));
            (shown(before), shown(exit))
        }
    };
    crate::print_line(format_args!("{before} became {after}"))
}

/// A node addressed by its LID.
struct Node {
    device: Device,
    lid: Lid,
    key: Option<MKey>,
    requests: u32,
}

impl Node {
    fn set(&mut self, target: (Attribute, u32), data: [u8; SMP_DATA_LEN]) -> anyhow::Result<()> {
        ensure!(self.request(Method::SET, target, data)? == data, "the node did not accept the new value");
        Ok(())
    }

    fn request(
        &mut self,
        method: Method,
        (attribute, modifier): (Attribute, u32),
        data: [u8; SMP_DATA_LEN],
    ) -> anyhow::Result<[u8; SMP_DATA_LEN]> {
        let own = self.device.lid()?.context("the port of --device has no LID")?;
        self.requests += 1;
        let mut mad = Mad::new(ManagementClass::SUBNET_LID, method, attribute, modifier);
        mad.set_transaction(TransactionId(self.requests.into()));
        mad.set_m_key(self.key);
        *mad.smp_data_mut() = data;
        self.device.send(&Datagram::subnet_management(own.into(), self.lid.into(), mad))?;
        let answer =
            self.answer().with_context(|| format!("{attribute:?} of the node at LID {}", self.lid))?;
        match answer.status() {
            Status::OK => Ok(*answer.smp_data()),
            status => bail!("the node at LID {} rejected {attribute:?} with status {status:?}", self.lid),
        }
    }

    fn answer(&mut self) -> anyhow::Result<Mad> {
        let silent = || anyhow!("no answer: no node has this LID, or its M_Key is another one");
        let deadline = Instant::now() + ANSWER_LIMIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.device.receive(left)?.ok_or_else(silent)? {
                Received::Lost(id) if application_transaction(id) == self.requests => return Err(silent()),
                Received::Datagram(datagram)
                    if datagram.mad.method().is_response()
                        && application_transaction(datagram.mad.transaction()) == self.requests =>
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
    found.ok_or_else(|| format!("a LID must be between 1 and 49151, got {text:?}"))
}
