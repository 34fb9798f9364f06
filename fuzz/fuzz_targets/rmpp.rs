//! Both ends of a transfer, on a network that loses, repeats and forges datagrams.
#![no_main]

use ib_wire::rmpp::{Receiver, Sender, TransferError};
use ib_wire::{Attribute, MAD_LEN, Mad, ManagementClass, Method};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((&size, mut steps)) = input.split_first() else { return };
    let header =
        Mad::new(ManagementClass::SUBNET_ADMINISTRATION, Method::GET_TABLE_RESP, Attribute::NODE_RECORD, 0);
    let data: Vec<u8> = (0..usize::from(size) * 112).map(|i| i as u8).collect();
    let (mut sender, mut receiver) =
        (Sender::new(header.clone(), data.clone()).expect("small"), Receiver::new());
    let mut forged = false;
    while let Some((&step, rest)) = steps.split_first() {
        steps = rest;
        match step % 6 {
            // Carry one each way.
            0 | 1 => {
                if let Some(mad) = sender.poll_transmit() {
                    deliver(&mut receiver, &mad, &data, forged);
                }
                if let Some(mad) = receiver.poll_transmit() {
                    let _ = sender.handle(&mad);
                }
            }
            // Lose one.
            2 => drop(sender.poll_transmit()),
            3 => drop(receiver.poll_transmit()),
            4 => drop(sender.handle_timeout()),
            // Forge one: its RMPP header is the input.
            _ => {
                let Some((rmpp, rest)) = steps.split_first_chunk::<12>() else { return };
                steps = rest;
                let mut mad = header.clone();
                mad.0[24..36].copy_from_slice(rmpp);
                forged = true;
                deliver(&mut receiver, &mad, &data, forged);
                let _ = sender.handle(&mad);
            }
        }
    }
    if let Some(raw) = input.first_chunk::<MAD_LEN>() {
        let _ = Receiver::new().handle(&Mad(*raw));
    }
});

/// Without forgeries what arrives is what was sent, and the receiver has nothing to object to.
fn deliver(receiver: &mut Receiver, mad: &Mad, data: &[u8], forged: bool) {
    match receiver.handle(mad) {
        Ok(Some(message)) if !forged => assert_eq!(message.data, data),
        Err(error @ TransferError::Aborted(_)) if !forged => panic!("an honest sender was refused: {error}"),
        _ => {}
    }
}
