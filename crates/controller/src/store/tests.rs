//! Tests of indices, partition numbers, sealed keys and migrations.

use std::sync::Mutex;
use std::time::Duration;

use controller_api::agent::{ClusterKey, ImageSpec};
use controller_api::cluster::{AdapterKind, CpuMode, Phase};
use controller_api::{MemorySize, Name};
use ib_wire::PartitionNumber;
use jiff::Timestamp;
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use super::codec::Columns as _;
use super::*;
use crate::clock::SystemClock;

/// A clock that tests set.
#[derive(Debug, Default)]
struct Hands {
    /// Seconds of the wall clock and of the monotonic clock.
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
    Store::open(path, &path.with_extension("key"), StoreLock::acquire(path).unwrap(), clock).await.unwrap()
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
        adapter: Default::default(),
        image: ImageSpec { name: name("image"), directory: "/image".into(), digest: String::new() },
        phase: Phase::Placed,
        reason: None,
        partition: Some(partition),
        inner: Vec::new(),
        overlay: None,
        network: Default::default(),
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

fn event() -> EventRecord {
    let at = Timestamp::UNIX_EPOCH;
    EventRecord { at, tenant: None, cluster: None, kind: "cluster.placed", text: String::new() }
}

async fn tenant(store: &Store, text: &str) -> TenantRef {
    let tenant = TenantRef { id: Uuid::new_v4(), name: name(text) };
    let row = TenantRow { tenant: tenant.clone(), created: Timestamp::UNIX_EPOCH, quota: Default::default() };
    store.tenant_create(&row).await.unwrap();
    tenant
}

/// A new cluster with the next partition number.
async fn take(store: &Store, tenant: &TenantRef, text: &str) -> ClusterRow {
    let number = store.number_free(1).await.unwrap().unwrap()[0];
    let row = cluster(tenant, text, number);
    store.cluster_create(&row, &keys(), &event()).await.unwrap();
    row
}

#[tokio::test]
async fn requests_use_indices_only() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory.path().join("store"), SystemClock::start()).await;
    let queries = [
        tokens::TOKEN_OF,
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
        numbers::REUSABLE_NUMBERS,
        numbers::NUMBERS_OF,
        site_partitions::CONF,
    ];
    let plan = async |sql: &str| -> String {
        let explain = format!("EXPLAIN QUERY PLAN {sql}");
        let rows = sqlx::query(AssertSqlSafe(explain)).fetch_all(&store.readers).await.unwrap();
        let lines: Vec<String> = rows.iter().map(|row| row.text("detail").unwrap()).collect();
        lines.join("\n")
    };
    for sql in queries {
        let plan = plan(sql).await;
        // A scan in index order up to a limit reads only rows that it returns, if no condition filters them.
        let tells_all = !sql.contains("WHERE") && sql.contains("LIMIT");
        let scans = plan.lines().filter(|line| line.contains("SCAN") && !line.contains("SCAN CONSTANT ROW"));
        let whole: Vec<&str> = scans.filter(|line| !(tells_all && line.contains("USING INDEX"))).collect();
        assert!(whole.is_empty(), "{sql}:\n{plan}");
        assert!(!plan.contains("TEMP B-TREE") || sql == clusters::CLUSTERS_OF, "{sql}:\n{plan}");
    }
    // The latest events are read backwards up to the limit, and then reversed.
    assert!(plan(records::LATEST_EVENTS_OF).await.contains("SEARCH events USING INDEX events_of_tenant"));
    assert!(plan("SELECT id FROM clusters WHERE reason = ?").await.contains("SCAN"), "the control");
}

#[tokio::test]
async fn a_number_belongs_to_one_cluster() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory.path().join("store"), SystemClock::start()).await;
    let (blue, red) = (tenant(&store, "blue").await, tenant(&store, "red").await);
    let first = take(&store, &blue, "one").await;
    let number = first.partition.unwrap();
    // As a sub-partition, whose column is not unique.
    let mut second = take(&store, &red, "two").await;
    let before = second.clone();
    let (full, limited) = Default::default();
    second.inner =
        vec![controller_api::cluster::SubPartitionStatus { name: name("io"), number, full, limited }];
    let error = store.cluster_save(&before, &second, false, &[]).await.unwrap_err();
    assert!(matches!(error, StoreError::NumberTaken { .. }), "{error}");
    second.inner[0].number = store.number_free(1).await.unwrap().unwrap()[0];
    store.cluster_save(&before, &second, false, &[]).await.expect("the control");
}

#[tokio::test]
async fn quarantine_ignores_the_wall_clock() {
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
    assert_eq!(store.number_count(blue.id).await.unwrap(), 1, "it counts while in quarantine");
    // The wall clock steps by an hour; the monotonic clock advances by a minute.
    *clock.seconds.lock().unwrap() = (3600, 60);
    assert!(store.number_free(1).await.unwrap().is_err());
    *clock.seconds.lock().unwrap() = (-3600, 599);
    assert!(store.number_free(1).await.unwrap().is_err());
    store.clock_save().await.unwrap();
    drop(store);
    // Another process continues on the same store.
    let clock = Arc::new(Hands::default());
    let store = loop {
        match StoreLock::acquire(&path) {
            Ok(lock) => {
                break Store::open(&path, &path.with_extension("key"), lock, clock.clone()).await.unwrap();
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    assert!(store.number_free(1).await.unwrap().is_err());
    *clock.seconds.lock().unwrap() = (0, 1);
    assert_eq!(store.number_free(1).await.unwrap(), Ok(vec![number]), "the control");
    assert_eq!(store.number_count(blue.id).await.unwrap(), 0);
}

/// Whether any file of a store holds these bytes.
fn is_in_files(path: &Path, needle: &[u8]) -> bool {
    ["", "-wal", "-shm"].iter().any(|end| {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        let bytes = std::fs::read(name).unwrap_or_default();
        bytes.windows(needle.len()).any(|window| window == needle)
    })
}

#[tokio::test]
async fn private_keys_are_in_no_file_of_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let store = open(&path, SystemClock::start()).await;
    let blue = tenant(&store, "blue").await;
    let pair = crate::keys::generate().unwrap();
    let private = pair.private.clone();
    let row = cluster(&blue, "one", store.number_free(1).await.unwrap().unwrap()[0]);
    let keys = ClusterKeys { ssh_keys: Vec::new(), key: pair };
    store.cluster_create(&row, &keys, &event()).await.unwrap();
    assert!(is_in_files(&path, keys.key.public.as_bytes()), "the control: public keys are found");
    let middle = private.lines().nth(2).unwrap();
    let is_leaked = || is_in_files(&path, b"PRIVATE KEY") || is_in_files(&path, middle.as_bytes());
    assert!(!is_leaked());
    assert_eq!(store.cluster_keys(row.id).await.unwrap(), Some(keys.clone()));
    store.cluster_save(&row, &row, true, &[]).await.unwrap();
    store.log_empty().await.unwrap();
    assert!(!is_leaked() && !is_in_files(&path, keys.key.public.as_bytes()), "the deleted keys are gone");
}

async fn reopen(path: &Path) -> Result<Store, StoreError> {
    let lock = loop {
        match StoreLock::acquire(path) {
            Ok(lock) => break lock,
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    Store::open(path, &path.with_extension("key"), lock, SystemClock::start()).await
}

#[tokio::test]
async fn a_lost_or_wrong_key_is_never_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let (path, key) = (directory.path().join("store"), directory.path().join("store.key"));
    let store = open(&path, SystemClock::start()).await;
    let blue = tenant(&store, "blue").await;
    let row = take(&store, &blue, "one").await;
    drop(store);
    let text = std::fs::read_to_string(&key).unwrap();
    std::fs::remove_file(&key).unwrap();
    let error = reopen(&path).await.unwrap_err();
    assert!(matches!(error, StoreError::Seal(SealError::Lost { .. })), "{error}");
    assert!(!key.exists());
    let other: String = text.chars().rev().collect();
    std::fs::write(&key, &other).unwrap();
    let error = reopen(&path).await.unwrap_err();
    assert!(matches!(error, StoreError::Seal(SealError::Open { .. })), "{error}");
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let error = reopen(&path).await.unwrap_err();
    assert!(matches!(error, StoreError::Seal(SealError::Wrong { .. })), "{error}");
    std::fs::write(&key, &text).unwrap();
    let store = reopen(&path).await.expect("the control: the right one");
    assert_eq!(store.cluster_keys(row.id).await.unwrap(), Some(keys()));
}

#[tokio::test]
async fn a_killed_rekey_is_completed_or_undone() {
    let directory = tempfile::tempdir().unwrap();
    let (path, key) = (directory.path().join("store"), directory.path().join("store.key"));
    let store = open(&path, SystemClock::start()).await;
    let blue = tenant(&store, "blue").await;
    let row = take(&store, &blue, "one").await;
    drop(store);
    let before = std::fs::read_to_string(&key).unwrap();
    // Killed after the change was committed and before the new key was renamed.
    drop(reopen(&path).await.unwrap());
    let lock = loop {
        match StoreLock::acquire(&path) {
            Ok(lock) => break lock,
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    rekey(&path, &key, lock).await.unwrap();
    let after = std::fs::read_to_string(&key).unwrap();
    assert_ne!(before, after);
    std::fs::rename(&key, directory.path().join("store.key.next")).unwrap();
    std::fs::write(&key, &before).unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let store = reopen(&path).await.unwrap();
    assert_eq!(store.cluster_keys(row.id).await.unwrap(), Some(keys()));
    drop(store);
    assert_eq!(std::fs::read_to_string(&key).unwrap(), after);
    // Killed before the change was committed: the old key counts.
    std::fs::write(directory.path().join("store.key.next"), &before).unwrap();
    std::fs::set_permissions(
        directory.path().join("store.key.next"),
        std::os::unix::fs::PermissionsExt::from_mode(0o600),
    )
    .unwrap();
    let store = reopen(&path).await.unwrap();
    assert_eq!(store.cluster_keys(row.id).await.unwrap(), Some(keys()));
    assert_eq!(std::fs::read_to_string(&key).unwrap(), after);
}

#[tokio::test]
async fn records_of_one_tenant_do_not_displace_others() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory.path().join("store"), SystemClock::start()).await;
    let (blue, red) = (tenant(&store, "blue").await, tenant(&store, "red").await);
    let note = async |tenant: &TenantRef| {
        store.event_note(&EventRecord { tenant: Some(tenant.clone()), ..event() }).await.unwrap();
    };
    note(&red).await;
    note(&blue).await;
    let sql = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10050) \
               INSERT INTO events (at, tenant_id, kind, text) SELECT '2024-01-01T00:00:00Z', ?, 'x', '' FROM n";
    sqlx::query(sql).bind(blue.id.to_string()).execute(&store.writer).await.unwrap();
    store.record_trim().await.unwrap();
    let count = async |id: Uuid| -> i64 {
        let query =
            sqlx::query_scalar("SELECT count(*) FROM events WHERE tenant_id = ?").bind(id.to_string());
        query.fetch_one(&store.readers).await.unwrap()
    };
    assert_eq!((count(blue.id).await, count(red.id).await), (10_000, 1));
}

/// A store as schema 5 left it: one cluster, whose tenant has changed its view.
async fn store_of_schema_5(path: &Path) -> ClusterRow {
    let store = open(path, SystemClock::start()).await;
    let blue = tenant(&store, "blue").await;
    let before = take(&store, &blue, "one").await;
    let mut after = before.clone();
    let overlay = StoredOverlay { wire_sls: vec![Default::default()], ..StoredOverlay::default() };
    after.overlay = Some(overlay);
    store.cluster_save(&before, &after, false, &[]).await.unwrap();
    to_schema_7(&store).await;
    let sql = "ALTER TABLE clusters RENAME COLUMN view_overlay TO view_wish; DROP TABLE site_partitions; \
               DROP TABLE site_partition_numbers; PRAGMA user_version = 5";
    sqlx::raw_sql(sql).execute(&store.writer).await.unwrap();
    after
}

async fn to_schema_7(store: &Store) {
    let sql = "ALTER TABLE clusters DROP COLUMN adapter; ALTER TABLE images DROP COLUMN infiniband; PRAGMA user_version = 7";
    sqlx::raw_sql(sql).execute(&store.writer).await.unwrap();
}

#[tokio::test]
async fn clusters_of_a_store_of_schema_7_keep_their_ethernet_cards() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let row = {
        let store = open(&path, SystemClock::start()).await;
        let blue = tenant(&store, "blue").await;
        let row = take(&store, &blue, "one").await;
        to_schema_7(&store).await;
        row
    };
    let store = reopen(&path).await.unwrap();
    let found = store.cluster_find(row.tenant.id, &row.name).await.unwrap().unwrap();
    assert_eq!((found.adapter, found.nodes), (AdapterKind::Ethernet, row.nodes));
}

#[tokio::test]
async fn a_store_of_schema_5_keeps_the_overlays_of_its_views() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let row = store_of_schema_5(&path).await;
    let store = reopen(&path).await.unwrap();
    let found = store.cluster_find(row.tenant.id, &row.name).await.unwrap().unwrap();
    assert!(found.overlay.is_some() && found.overlay == row.overlay);
    let version: i64 = sqlx::query_scalar("PRAGMA user_version").fetch_one(&store.readers).await.unwrap();
    assert_eq!(version, SCHEMA);
}
