//! What the store reads, keeps apart, and brings along from before.

use std::sync::Mutex;
use std::time::Duration;

use controller_api::agent::{ClusterKey, ImageOrder};
use controller_api::cluster::{CpuMode, Phase};
use controller_api::{MemorySize, Name};
use ib_wire::PartitionNumber;
use jiff::Timestamp;
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use super::words::Columns as _;
use super::*;
use crate::clock::SystemClock;

/// A clock that a test sets.
#[derive(Debug, Default)]
struct Hands {
    /// Seconds of the wall clock, and of the other one.
    seconds: Mutex<(i64, u64)>,
}

impl Clock for Hands {
    fn wall(&self) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + self.seconds.lock().unwrap().0).unwrap()
    }

    fn monotonic(&self) -> Duration {
        Duration::from_secs(self.seconds.lock().unwrap().1)
    }
}

async fn open(path: &Path, clock: Arc<dyn Clock>) -> Store {
    Store::open(path, Lock::of(path).unwrap(), clock).await.unwrap()
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn cluster(tenant: &TenantRef, text: &str, partition: PartitionNumber) -> ClusterRow {
    ClusterRow {
        id: Uuid::new_v4(),
        tenant: tenant.clone(),
        name: name(text),
        size: 1,
        cores: 1,
        memory: MemorySize::from_mib(384),
        mode: CpuMode::Shared,
        class: Default::default(),
        sl_mode: Default::default(),
        image: ImageOrder { name: name("image"), directory: "/image".into(), digest: String::new() },
        phase: Phase::Placed,
        reason: None,
        partition: Some(partition),
        inner: Vec::new(),
        wish: None,
        generation: 1,
        created: Timestamp::UNIX_EPOCH,
        nodes: Vec::new(),
        operation: None,
        began: Uptime::default(),
    }
}

fn keys() -> ClusterKeys {
    let key = ClusterKey { public: "public".to_owned(), private: "private".to_owned() };
    ClusterKeys { ssh_keys: Vec::new(), key }
}

fn happening() -> Happening {
    let at = Timestamp::UNIX_EPOCH;
    Happening { at, tenant: None, cluster: None, kind: "cluster.placed", text: String::new() }
}

async fn tenant(store: &Store, text: &str) -> TenantRef {
    let tenant = TenantRef { id: Uuid::new_v4(), name: name(text) };
    let row = TenantRow { tenant: tenant.clone(), created: Timestamp::UNIX_EPOCH, quota: Default::default() };
    store.tenant_create(&row).await.unwrap();
    tenant
}

/// The next number, given to a new cluster.
async fn take(store: &Store, tenant: &TenantRef, text: &str) -> ClusterRow {
    let number = store.number_free(1).await.unwrap().unwrap()[0];
    let row = cluster(tenant, text, number);
    store.cluster_create(&row, &keys(), &happening()).await.unwrap();
    row
}

#[tokio::test]
async fn requests_read_by_indices_alone() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory.path().join("store"), SystemClock::start()).await;
    let queries = [
        site::TOKEN_OF,
        site::TENANT_OF,
        clusters::CLUSTER_OF,
        clusters::CLUSTERS_OF,
        clusters::NODES_OF,
        clusters::RUNNING_OF,
        clusters::KEYS_OF,
        records::OPERATIONS,
        records::OPERATIONS_OF,
        records::EVENTS_AFTER,
        records::EVENTS_OF_AFTER,
        numbers::LAST_NUMBER,
        numbers::RESTED_NUMBERS,
        numbers::NUMBERS_OF,
    ];
    let plan = async |sql: &str| -> String {
        let explain = format!("EXPLAIN QUERY PLAN {sql}");
        let rows = sqlx::query(AssertSqlSafe(explain)).fetch_all(&store.readers).await.unwrap();
        let lines: Vec<String> = rows.iter().map(|row| row.text("detail").unwrap()).collect();
        lines.join("\n")
    };
    for sql in queries {
        let plan = plan(sql).await;
        // A scan in the order of an index that ends at a limit reads no more than it tells.
        let scans = plan.lines().filter(|line| line.contains("SCAN") && !line.contains("SCAN CONSTANT ROW"));
        let whole: Vec<&str> = scans.filter(|line| !line.contains("USING INDEX")).collect();
        assert!(whole.is_empty(), "{sql}:\n{plan}");
        assert!(!plan.contains("TEMP B-TREE") || sql == clusters::CLUSTERS_OF, "{sql}:\n{plan}");
    }
    // The latest are read backwards until the limit, and then turned round.
    assert!(plan(records::LATEST_EVENTS_OF).await.contains("SEARCH events USING INDEX events_of_tenant"));
    assert!(plan("SELECT * FROM clusters WHERE reason = ?").await.contains("SCAN"), "the control");
}

#[tokio::test]
async fn a_number_belongs_to_one_cluster() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory.path().join("store"), SystemClock::start()).await;
    let (blue, red) = (tenant(&store, "blue").await, tenant(&store, "red").await);
    let first = take(&store, &blue, "one").await;
    let number = first.partition.unwrap();
    // As a partition inside, where no column of its own is unique.
    let mut second = take(&store, &red, "two").await;
    let before = second.clone();
    let (full, limited) = Default::default();
    second.inner = vec![controller_api::cluster::InnerPartition { name: name("io"), number, full, limited }];
    let error = store.cluster_save(&before, &second, false, &[]).await.unwrap_err();
    assert!(matches!(error, StoreError::NumberTaken { .. }), "{error}");
    second.inner[0].number = store.number_free(1).await.unwrap().unwrap()[0];
    store.cluster_save(&before, &second, false, &[]).await.expect("the control");
}

#[tokio::test]
async fn numbers_rest_whatever_the_wall_clock_does() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let clock = Arc::new(Hands::default());
    let store = open(&path, clock.clone()).await;
    let blue = tenant(&store, "blue").await;
    let row = take(&store, &blue, "one").await;
    let number = row.partition.unwrap();
    // All others are in use.
    let sql = "WITH RECURSIVE all_of (number) AS (SELECT 257 UNION ALL SELECT number + 1 FROM all_of WHERE number < 32511) \
               INSERT INTO partition_numbers SELECT number, NULL, ?, 'own', NULL FROM all_of";
    let other = take(&store, &blue, "two").await;
    sqlx::query("DELETE FROM partition_numbers WHERE number = 257").execute(&store.writer).await.unwrap();
    sqlx::query(sql).bind(other.id.to_string()).execute(&store.writer).await.unwrap();
    sqlx::query("UPDATE fabric SET last_partition = 32511").execute(&store.writer).await.unwrap();
    store.cluster_save(&row, &row, true, &[]).await.unwrap();
    assert_eq!(store.number_count(blue.id).await.unwrap(), 1, "it counts while it rests");
    // The wall clock steps by an hour, the other goes on for a minute.
    *clock.seconds.lock().unwrap() = (3600, 60);
    assert!(store.number_free(1).await.unwrap().is_err());
    *clock.seconds.lock().unwrap() = (-3600, 599);
    assert!(store.number_free(1).await.unwrap().is_err());
    store.clock_save().await.unwrap();
    drop(store);
    // Another process goes on where this one was.
    let clock = Arc::new(Hands::default());
    let store = loop {
        match Lock::of(&path) {
            Ok(lock) => break Store::open(&path, lock, clock.clone()).await.unwrap(),
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    assert!(store.number_free(1).await.unwrap().is_err());
    *clock.seconds.lock().unwrap() = (0, 1);
    assert_eq!(store.number_free(1).await.unwrap(), Ok(vec![number]), "the control");
    assert_eq!(store.number_count(blue.id).await.unwrap(), 0);
}
