//! Raw HTTP requests, for tests of what a well-behaved client cannot send.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

/// Longest wait for a response.
const PATIENCE: Duration = Duration::from_secs(120);

/// A request.
#[derive(Clone, Debug, Default)]
pub struct HttpRequest<'a> {
    pub method: &'a str,
    pub path: &'a str,
    pub token: Option<&'a str>,
    pub body: Option<&'a Value>,
    pub upgrade: Option<&'a str>,
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpResponse {
    pub status: u16,
    pub body: String,
}

impl HttpResponse {
    /// The body as JSON; `null` if there is none.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }
}

impl HttpRequest<'_> {
    /// The request as bytes on the wire.
    pub fn bytes(&self) -> Vec<u8> {
        let mut text = format!("{} {} HTTP/1.1\r\nHost: heddle\r\n", self.method, self.path);
        if let Some(token) = self.token {
            text += &format!("Authorization: Bearer {token}\r\n");
        }
        match self.upgrade {
            Some(protocol) => text += &format!("Connection: upgrade\r\nUpgrade: {protocol}\r\n"),
            None => text += "Connection: close\r\n",
        }
        let body = self.body.map(Value::to_string).unwrap_or_default();
        if self.body.is_some() {
            text += &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
        }
        (text + "\r\n" + &body).into_bytes()
    }

    /// Sends the request to a unix socket, and reads the response.
    pub fn send(&self, socket: &Path) -> HttpResponse {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&self.bytes()).unwrap();
        read_response(&mut stream).unwrap()
    }
}

/// Reads a response: all of it, or its head if the connection was upgraded.
pub fn read_response(stream: &mut impl Read) -> io::Result<HttpResponse> {
    let (mut text, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let head = text.windows(4).position(|end| end == b"\r\n\r\n");
        if head.is_some() && text.starts_with(b"HTTP/1.1 101") {
            break;
        }
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => text.extend(&piece[..length]),
            // Bytes received before the error count.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset && head.is_some() => break,
            Err(error) => return Err(error),
        }
    }
    let text = String::from_utf8_lossy(&text);
    let (head, body) = text.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok(HttpResponse { status: status.ok_or(io::ErrorKind::InvalidData)?, body: body.to_owned() })
}
