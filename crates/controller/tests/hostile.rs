//! Load of a hostile tenant, and its effect on an honest one.
//!
//! Prints the honest tenant's times without and with the attack. They are measured in one run and compared with each other,
//! so that the ratio is meaningful on a busy machine, too; nothing is asserted about them. Attacker and site share the
//! machine: the times while the same attacker loads a server that does nothing (`elsewhere`) show how much of the delay is
//! the attacker's own use of the processors.
//!
//! `cargo nextest run -p controller --test hostile --ignore-default-filter --no-capture`
#![allow(clippy::unwrap_used, reason = "a measurement fails by panicking")]

#[path = "suite/site/mod.rs"]
mod site;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use site::http::{HttpRequest, read_response};
use site::{Site, new_cluster};

/// Measurements without and with the attack, alternating, because the lists grow meanwhile.
const TURNS: usize = 3;

/// How long each turn lasts.
const TURN: Duration = Duration::from_secs(15);

/// Pause of the honest tenant between requests: it stays below its rate limit, so that no delay is its own.
const PAUSE: Duration = Duration::from_millis(25);

/// The hostile tenant connects by TCP, the honest one by the unix socket: two peers, like two users of a machine.
struct Attacker<'a> {
    address: &'a str,
    token: &'a str,
    stop: &'a AtomicBool,
    sent: &'a AtomicU64,
}

impl Attacker<'_> {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn ask(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        upgrade: Option<&str>,
    ) -> Option<TcpStream> {
        self.sent.fetch_add(1, Ordering::Relaxed);
        let request = HttpRequest { method, path, token: Some(self.token), body, upgrade };
        let mut stream = TcpStream::connect(self.address).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(15))).ok()?;
        stream.write_all(&request.bytes()).ok()?;
        Some(stream)
    }

    fn finish(&self, method: &str, path: &str, body: Option<&Value>) {
        if let Some(mut stream) = self.ask(method, path, body, None) {
            let _ = read_response(&mut stream);
        }
    }

    /// Opens as many connections as possible, each with an incomplete request.
    fn hold_connections(&self) {
        let mut held = Vec::new();
        while self.goes_on() {
            if let Ok(mut stream) = TcpStream::connect(self.address) {
                let _ = stream.write_all(b"GET /v1/clusters HTTP/1.1\r\n");
                held.push(stream);
            }
            if held.len() > 200 {
                held.remove(0);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn wait_for_events(&self) {
        while self.goes_on() {
            self.finish("GET", "/v1/events?after=1000000000&wait=true", None);
        }
    }

    /// Creates and deletes clusters with almost as many keys and partitions as are allowed.
    fn churn(&self, name: &str) {
        let key = format!("ssh-ed25519 {} x", "A".repeat(4000));
        let partitions: Vec<Value> = (1..=8)
            .map(|number| json!({ "name": format!("p{number}"), "full": [1], "limited": [] }))
            .collect();
        let mut new = serde_json::to_value(new_cluster(name, 1)).unwrap();
        new["ssh_keys"] = json!(vec![key; 60]);
        new["partitions"] = json!(partitions);
        while self.goes_on() {
            self.finish("POST", "/v1/clusters", Some(&new));
            self.finish("DELETE", &format!("/v1/clusters/{name}"), None);
        }
    }

    fn open_views(&self) {
        let mut held = Vec::new();
        while self.goes_on() {
            held.extend(self.ask("POST", "/v1/clusters/base/nodes/1/view", None, Some("heddle-view")));
            if held.len() > 40 {
                held.clear();
            }
        }
    }

    fn list(&self) {
        while self.goes_on() {
            for path in
                ["/v1/clusters", "/v1/operations", "/v1/events", "/v1/tokens", "/v1/clusters/base/view"]
            {
                self.finish("GET", path, None);
            }
        }
    }

    fn send_large(&self) {
        let body = json!({ "name": "x".repeat(900_000) });
        while self.goes_on() {
            self.finish("POST", "/v1/clusters", Some(&body));
            if let Some(mut stream) = self.ask("GET", "/v1/openapi.json", None, None) {
                // Reads a few bytes and closes.
                let _ = stream.read(&mut [0; 16]);
            }
        }
    }
}

/// Times of requests, by kind.
#[derive(Default)]
struct Times {
    show: Vec<Duration>,
    list: Vec<Duration>,
    create: Vec<Duration>,
    refused: usize,
}

fn measure(site: &Site, token: &str, times: &mut Times) {
    let began = Instant::now();
    let new = serde_json::to_value(new_cluster("short", 1)).unwrap();
    let ask = |method: &str, path: &str, body: Option<&Value>| {
        let request = HttpRequest { method, path, token: Some(token), body, upgrade: None };
        std::thread::sleep(PAUSE);
        let asked = Instant::now();
        let answer = request.send(&site.socket());
        (asked.elapsed(), answer.status)
    };
    while began.elapsed() < TURN {
        for _ in 0..10 {
            times.show.push(ask("GET", "/v1/clusters/mine", None).0);
            times.list.push(ask("GET", "/v1/events", None).0);
        }
        let (took, status) = ask("POST", "/v1/clusters", Some(&new));
        // The cluster of the previous round may still be leaving.
        if status == 202 {
            times.create.push(took);
        } else {
            times.refused += usize::from(status != 409);
        }
        ask("DELETE", "/v1/clusters/short", None);
    }
}

/// Reads requests and answers each with status 503, until `stop` is set and one more connection arrives.
fn serve_nothing(listener: &TcpListener, stop: &AtomicBool) {
    let mut buffer = vec![0; 64 << 10];
    for stream in listener.incoming() {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let Ok(mut stream) = stream else { continue };
        let _ = stream.set_read_timeout(Some(Duration::from_millis(1)));
        while stream.read(&mut buffer).is_ok_and(|read| read == buffer.len()) {}
        let _ = stream
            .write_all(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    }
}

/// Measures the honest tenant while the hostile one loads the server at `address`.
fn measure_beside(site: &Site, tokens: (&str, &str), address: &str, sent: &AtomicU64, times: &mut Times) {
    let stop = AtomicBool::new(false);
    let attacker = || Attacker { address, token: tokens.1, stop: &stop, sent };
    std::thread::scope(|scope| {
        let begin = |act: &'static (dyn Fn(Attacker<'_>) + Sync)| {
            let attacker = attacker();
            scope.spawn(move || {
                yield_to_others();
                act(attacker);
            });
        };
        begin(&|attacker| attacker.hold_connections());
        (0..8).for_each(|_| begin(&|attacker| attacker.wait_for_events()));
        begin(&|attacker| attacker.churn("c0"));
        begin(&|attacker| attacker.churn("c1"));
        begin(&|attacker| attacker.churn("c2"));
        begin(&|attacker| attacker.churn("c3"));
        begin(&|attacker| attacker.open_views());
        (0..2).for_each(|_| begin(&|attacker| attacker.list()));
        begin(&|attacker| attacker.send_large());
        std::thread::sleep(Duration::from_secs(2));
        measure(site, tokens.0, times);
        stop.store(true, Ordering::Relaxed);
    });
}

/// Lowers the priority of the attacker's threads: a real attacker would use another machine.
fn yield_to_others() {
    let thread = std::fs::read_link("/proc/thread-self").unwrap();
    let id = thread.file_name().unwrap();
    let niced = std::process::Command::new("renice").args(["-n", "19", "-p"]).arg(id).output().unwrap();
    assert!(niced.status.success(), "{niced:?}");
}

fn percentile(times: &mut [Duration], part: f64) -> f64 {
    times.sort();
    let index = ((times.len() as f64 - 1.0) * part).round() as usize;
    times.get(index).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
}

#[test]
fn a_hostile_tenant_does_not_slow_an_honest_one() {
    let site = Site::new(16);
    let (honest, hostile) = (site.tenant_token("honest"), site.tenant_token("hostile"));
    for (token, name) in [(&honest, "mine"), (&hostile, "base")] {
        let client = site.client(token.clone());
        let operation = site.ask(client.cluster_create(&new_cluster(name, 1))).unwrap();
        site.wait(&client, &operation);
    }
    let (mut quiet, mut elsewhere, mut attacked) = (Times::default(), Times::default(), Times::default());
    let (sent_elsewhere, sent) = (AtomicU64::new(0), AtomicU64::new(0));
    let (listener, stop) = (TcpListener::bind("127.0.0.1:0").unwrap(), AtomicBool::new(false));
    let nothing = listener.local_addr().unwrap().to_string();
    std::thread::scope(|scope| {
        scope.spawn(|| serve_nothing(&listener, &stop));
        for _ in 0..TURNS {
            measure(&site, &honest, &mut quiet);
            measure_beside(&site, (&honest, &hostile), &nothing, &sent_elsewhere, &mut elsewhere);
            measure_beside(&site, (&honest, &hostile), &site.address(), &sent, &mut attacked);
        }
        stop.store(true, Ordering::Relaxed);
        TcpStream::connect(&nothing).unwrap();
    });
    println!("hostile requests: {sent_elsewhere:?} elsewhere, {sent:?} to the site");
    println!("rejected for the honest tenant: quiet {}, attacked {}", quiet.refused, attacked.refused);
    println!(
        "{:8} {:>6} {:>10} {:>13} {:>10} {:>9} {:>9}",
        "request", "", "quiet ms", "elsewhere ms", "attack ms", "to quiet", "elsewhere"
    );
    for (name, before, beside, after) in [
        ("show", &mut quiet.show, &mut elsewhere.show, &mut attacked.show),
        ("events", &mut quiet.list, &mut elsewhere.list, &mut attacked.list),
        ("create", &mut quiet.create, &mut elsewhere.create, &mut attacked.create),
    ] {
        assert!(!before.is_empty() && !after.is_empty(), "{name} was never answered");
        for (label, part) in [("p50", 0.5), ("p99", 0.99)] {
            let (quiet, beside) = (percentile(before, part), percentile(beside, part));
            let attacked = percentile(after, part);
            let (to_quiet, to_beside) = (attacked / quiet, attacked / beside);
            println!(
                "{name:8} {label:>6} {quiet:>10.2} {beside:>13.2} {attacked:>10.2} {to_quiet:>9.1} {to_beside:>9.1}"
            );
        }
    }
}
