//! A client with full access to one adapter, and its requests.

use ib_transport::{ClientRole, Device, Received};
use ib_wire::{Datagram, Lid, Mad, TransactionId};

use super::{PATIENCE, Server};

pub struct Adapter {
    pub device: Device,
    pub lid: Option<Lid>,
    pub transactions: u64,
}

impl Adapter {
    pub fn attach(server: &Server, node: &str, role: ClientRole) -> Self {
        let mut device = server.device(node, role);
        let lid = device.lid().unwrap();
        Self { device, lid, transactions: 0 }
    }

    /// Sends a request and returns its answer; `None` once it is known that there will be none.
    pub fn ask(&mut self, mut datagram: Datagram) -> Option<Mad> {
        self.transactions += 1;
        datagram.mad.set_transaction(TransactionId(self.transactions));
        self.device.send(&datagram).unwrap();
        loop {
            let received = self.device.receive(PATIENCE).unwrap().expect("an answer or its loss");
            let of = |id: TransactionId| u64::from(ib_transport::application_transaction(id));
            match received {
                Received::Lost(id) if of(id) == self.transactions => return None,
                Received::Datagram(answer)
                    if answer.mad.method().is_response()
                        && of(answer.mad.transaction()) == self.transactions =>
                {
                    return Some(answer.mad);
                }
                _ => {}
            }
        }
    }
}
