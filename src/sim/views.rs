//! Network views of virtual machines with InfiniBand adapters: the emulation is a client of each, over a stream that the agent of the
//! machine's host has opened (`AdapterView` of the control protocol). Which datagrams go there is decided in `fabric_sim`.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use anyhow::Context;
use fabric_sim::{Fabric, FunctionId, ToView, ViewPort};
use ib_transport::framed::{Frame, FramedStreams, PortDetails, StreamEvent};
use ib_transport::{ClientRole, Waker};
use ib_wire::{Pkey, PortInfo};
use serde_json::json;

use crate::control_socket::Replies;

/// The streams of views, by the function of the machine.
#[derive(Debug)]
pub struct FunctionViews {
    streams: FramedStreams<FunctionId>,
    roles: BTreeMap<FunctionId, Role>,
    /// Streams that control connections have become.
    opened: Receiver<(FunctionId, UnixStream)>,
    opening: Sender<(FunctionId, UnixStream)>,
    waker: Waker,
}

/// Whether a machine runs a subnet manager.
#[derive(Clone, Copy, Debug, Default)]
struct Role {
    is_sm: bool,
    /// What its view was sent.
    sent: bool,
}

impl FunctionViews {
    /// No views. `waker` wakes the thread that calls [`FunctionViews::update`].
    pub fn new(waker: Waker) -> anyhow::Result<Self> {
        let (opening, opened) = mpsc::channel();
        let streams = FramedStreams::new().context("cannot watch the network views of virtual machines")?;
        Ok(Self { streams, roles: BTreeMap::new(), opened, opening, waker })
    }

    /// Makes the connection of a request the view of a function, once the reply has been sent.
    pub fn expect(&self, function: FunctionId, answers: Replies) {
        let (opening, waker) = (self.opening.clone(), self.waker.clone());
        answers.hand_over(json!("opened"), move |stream| {
            // Without a receiver the emulation has ended.
            let _ = opening.send((function, stream));
            waker.wake();
        });
    }

    /// Opens views whose streams have arrived, and closes those of functions that are gone.
    pub fn update(&mut self, fabric: &mut Fabric) {
        let gone: Vec<FunctionId> = self.streams.keys().filter(|id| !fabric.has_view(*id)).collect();
        for function in gone {
            self.streams.close(function);
            self.roles.remove(&function);
        }
        while let Ok((function, stream)) = self.opened.try_recv() {
            if !fabric.has_adapter_function(function) {
                continue;
            }
            match self.streams.open(function, stream) {
                Ok(()) => drop(fabric.open_view(function)),
                Err(error) => {
                    tracing::warn!(%error, "cannot open the network view of a virtual machine");
                    fabric.close_view(function);
                }
            }
            self.roles.entry(function).or_default().sent = false;
        }
        self.roles.retain(|function, _| fabric.has_adapter_function(*function));
        self.send_roles();
    }

    /// Notes whether a machine runs a subnet manager. Its view learns it in [`FunctionViews::update`].
    pub fn set_is_sm(&mut self, function: FunctionId, is_sm: bool) {
        self.roles.entry(function).or_default().is_sm = is_sm;
    }

    fn send_roles(&mut self) {
        for (function, role) in self.roles.iter_mut().filter(|(_, role)| role.sent != role.is_sm) {
            let new = if role.is_sm { ClientRole::SubnetManager } else { ClientRole::Ordinary };
            // A view that does not read is sent it later.
            if self.streams.send(*function, &Frame::SetRole(new)) {
                role.sent = role.is_sm;
            }
        }
    }

    /// Sends a view what its function has for it. Messages to a view that does not read are dropped and counted.
    pub fn send(&mut self, fabric: &mut Fabric, function: FunctionId) {
        while let Some(message) = fabric.poll_view_output(function) {
            let frame = match message {
                ToView::Datagram(datagram) => Frame::Datagram(datagram),
                ToView::PortQuery => Frame::GetPortDetails,
            };
            if !self.streams.send(function, &frame) {
                fabric.count_unsent_to_view(function);
            }
        }
    }

    /// Handles a bounded number of frames of views.
    pub fn receive(&mut self, fabric: &mut Fabric, now: Duration) {
        if let Err(error) = self.streams.begin_round() {
            tracing::warn!(%error, "cannot poll the network views of virtual machines");
            return;
        }
        while let Some((function, event)) = self.streams.receive() {
            match event {
                StreamEvent::Frame(Frame::Datagram(datagram)) => {
                    fabric.deliver_from_view(now, function, *datagram);
                }
                StreamEvent::Frame(Frame::Lost(request)) => fabric.forget_view_request(function, request),
                StreamEvent::Frame(Frame::PortDetails(details)) => {
                    fabric.set_view_port(now, function, view_port(&details));
                    self.send(fabric, function);
                }
                StreamEvent::Frame(Frame::Attached(_)) => {}
                StreamEvent::Frame(other) => {
                    tracing::warn!(frame = ?other, "closing a network view");
                    self.end(fabric, function);
                }
                StreamEvent::Ended => self.end(fabric, function),
            }
        }
    }

    fn end(&mut self, fabric: &mut Fabric, function: FunctionId) {
        self.streams.close(function);
        fabric.close_view(function);
        // The next stream is an ordinary client again.
        if let Some(role) = self.roles.get_mut(&function) {
            role.sent = false;
        }
    }
}

impl AsFd for FunctionViews {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.streams.as_fd()
    }
}

fn view_port(details: &PortDetails) -> ViewPort {
    let info = PortInfo::decode(&details.port_info).ok();
    let [high, low, ..] = details.pkeys;
    ViewPort {
        lid: details.lid,
        manager: info.and_then(|info| info.master_sm_lid),
        key: Pkey::from_wire(u16::from_be_bytes([high, low])),
    }
}
