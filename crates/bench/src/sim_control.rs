//! A client of the control socket of `heddle sim`: a request is one line of JSON, and so is the reply. `heddle
//! sim-ctl` does the same; starting a program for each request would take longer than what is measured.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, bail};
use serde_json::Value;

/// Sends a request to the emulation `name` that was started with `XDG_RUNTIME_DIR` set to `runtime`, and returns its
/// answer.
pub fn ask(runtime: &Path, name: &str, request: &Value) -> anyhow::Result<Value> {
    let path = runtime.join("heddle").join(format!("sim-{name}.sock"));
    let mut stream =
        UnixStream::connect(&path).with_context(|| format!("cannot connect to {}", path.display()))?;
    writeln!(stream, "{request}")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    let mut reply: Value = serde_json::from_str(&line).context("unexpected reply from heddle sim")?;
    if let Some(error) = reply.get("error") {
        bail!("heddle sim rejected {request}: {error}");
    }
    Ok(reply.get_mut("ok").context("unexpected reply from heddle sim")?.take())
}
