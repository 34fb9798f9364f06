//! The server and port to attach to, from environment variables.

use std::env;
use std::path::PathBuf;

use ib_transport::ClientRole;
use ib_transport::ibsim::{InvalidSocketName, SocketName};

/// Control port of an ibsim server that is reached by UDP, if `IBSIM_SERVER_PORT` names no other.
const UDP_PORT: u16 = 7070;

/// Where to attach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attachment {
    pub(crate) server: ServerAddress,
    /// `SIM_HOST`: id or description of the node; empty = the first node.
    pub(crate) node: String,
    /// `SIM_SET_ISSM`: the client is the subnet manager of its port from the start.
    pub(crate) role: ClientRole,
}

/// The server, and with it the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ServerAddress {
    /// `HEDDLE_SOCKET`: the framed protocol at a unix socket.
    Framed(PathBuf),
    /// `IBSIM_SERVER_NAME` and `IBSIM_SERVER_PORT`: the ibsim protocol by UDP.
    Udp { host: String, port: u16 },
    /// `IBSIM_SOCKNAME`: the ibsim protocol by abstract unix sockets.
    Ibsim(SocketName),
}

/// Why the variables name no server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EnvironmentError {
    #[error("IBSIM_SERVER_PORT must be a number between 1 and 65524, got {0:?}")]
    Port(String),
    #[error("IBSIM_SOCKNAME: {0}")]
    Name(#[from] InvalidSocketName),
}

impl Attachment {
    /// Reads the variables of this process.
    pub(crate) fn from_environment() -> Result<Self, EnvironmentError> {
        Self::from_variables(|name| env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self, EnvironmentError> {
        let server = if let Some(path) = variable("HEDDLE_SOCKET") {
            ServerAddress::Framed(path.into())
        } else if let Some(host) = variable("IBSIM_SERVER_NAME") {
            let port = match variable("IBSIM_SERVER_PORT") {
                // The data ports of all clients follow the control port.
                Some(text) => match text.parse() {
                    Ok(port @ 1..=65524) => port,
                    _ => return Err(EnvironmentError::Port(text)),
                },
                None => UDP_PORT,
            };
            ServerAddress::Udp { host, port }
        } else {
            let name = variable("IBSIM_SOCKNAME");
            ServerAddress::Ibsim(SocketName::new(name.as_deref().unwrap_or("sim"))?)
        };
        let is_manager = variable("SIM_SET_ISSM").is_some();
        let role = if is_manager { ClientRole::SubnetManager } else { ClientRole::Ordinary };
        Ok(Self { server, node: variable("SIM_HOST").unwrap_or_default(), role })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(variables: &[(&str, &str)]) -> Result<Attachment, EnvironmentError> {
        let value =
            |name: &str| variables.iter().find(|(it, _)| *it == name).map(|(_, value)| value.to_string());
        Attachment::from_variables(value)
    }

    #[test]
    fn without_variables_the_server_is_the_default_of_ibsim() {
        let attachment = from(&[]).unwrap();
        assert_eq!(attachment.server, ServerAddress::Ibsim(SocketName::new("sim").unwrap()));
        assert_eq!((attachment.node.as_str(), attachment.role), ("", ClientRole::Ordinary));
    }

    #[test]
    fn the_framed_socket_precedes_udp_and_udp_precedes_the_name() {
        let all = [("IBSIM_SOCKNAME", "n"), ("IBSIM_SERVER_NAME", "h"), ("HEDDLE_SOCKET", "/run/s")];
        assert_eq!(from(&all).unwrap().server, ServerAddress::Framed("/run/s".into()));
        let udp = ServerAddress::Udp { host: "h".to_owned(), port: UDP_PORT };
        assert_eq!(from(&all[..2]).unwrap().server, udp);
        assert_eq!(from(&all[..1]).unwrap().server, ServerAddress::Ibsim(SocketName::new("n").unwrap()));
    }

    #[test]
    fn an_invalid_port_or_name_is_rejected() {
        let port = |text| from(&[("IBSIM_SERVER_NAME", "h"), ("IBSIM_SERVER_PORT", text)]);
        assert!(port("7071").is_ok());
        assert_eq!(port("0"), Err(EnvironmentError::Port("0".to_owned())));
        assert_eq!(port("65535"), Err(EnvironmentError::Port("65535".to_owned())));
        assert!(matches!(from(&[("IBSIM_SOCKNAME", &"x".repeat(93))]), Err(EnvironmentError::Name(_))));
    }
}
