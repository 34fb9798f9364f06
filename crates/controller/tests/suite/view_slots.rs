//! Stream slots of the view server are limited per tenant.

use controller_api::ApiClient;
use controller_api::operation::OperationState;
use ib_transport::framed::{Frame, FrameReader};
use tokio::io::AsyncReadExt as _;

use crate::site::{Site, by_name, eventually, new_cluster};

/// More than the view server has slots for.
const MANY: usize = 1100;

/// A stream to a view, and its first frame.
struct Opened {
    _stream: controller_api::Upgraded,
    first: Frame,
}

fn open(site: &Site, client: &ApiClient, cluster: &str) -> Opened {
    let opening = async {
        let mut stream = client.view_open(&by_name(cluster), 1).await.unwrap();
        let mut reader = FrameReader::default();
        loop {
            if let Some(first) = reader.next_frame().unwrap() {
                return Opened { _stream: stream, first };
            }
            let count = stream.read(reader.room()).await.unwrap();
            assert_ne!(count, 0, "the stream ended without a frame");
            reader.filled(count);
        }
    };
    site.ask(opening)
}

fn ready(site: &Site, client: &ApiClient, cluster: &str) {
    let operation = site.ask(client.cluster_create(&new_cluster(cluster, 2))).unwrap();
    assert_eq!(site.wait(client, &operation).state, OperationState::Done);
    eventually("there is a view", || {
        site.ask(client.view_show(&by_name(cluster))).is_ok_and(|view| view.nodes.len() == 2)
    });
}

#[test]
fn one_tenant_cannot_exhaust_the_view_slots() {
    let site = Site::new(8);
    let (blue, red) = (site.tenant("blue"), site.tenant("red"));
    ready(&site, &blue, "one");
    ready(&site, &red, "two");
    let mut held = Vec::new();
    for _ in 0..MANY {
        let opened = open(&site, &blue, "one");
        if !matches!(opened.first, Frame::Attached(_)) {
            break;
        }
        held.push(opened);
    }
    let honest = open(&site, &red, "two");
    assert!(matches!(honest.first, Frame::Attached(_)), "{:?} beside {} streams", honest.first, held.len());
    assert!(held.len() > 8, "a tenant has several: {}", held.len());
}
