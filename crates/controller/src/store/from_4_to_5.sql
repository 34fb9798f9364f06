-- Migrates schema 4 to 5. Runs without foreign keys, which are checked at the end.

-- Tenants get ids. Records older than a tenant belong to an earlier tenant of the same name: only operators see them.
CREATE TABLE new_tenants (
    id      TEXT PRIMARY KEY,
    name    TEXT NOT NULL UNIQUE,
    created TEXT NOT NULL,
    quota   TEXT NOT NULL
) STRICT;
INSERT INTO new_tenants SELECT
    lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) || '-'
        || substr('89ab', 1 + (random() & 3), 1) || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6))),
    name, created, '{}' FROM tenants;
DROP TABLE tenants;
ALTER TABLE new_tenants RENAME TO tenants;

CREATE TABLE new_tokens (
    id      TEXT PRIMARY KEY,
    tenant  TEXT REFERENCES tenants (id) ON DELETE CASCADE,
    hash    BLOB NOT NULL UNIQUE,
    created TEXT NOT NULL,
    name    TEXT NOT NULL,
    expires INTEGER,
    last_used INTEGER
) STRICT;
-- Tokens without name and expiry are named after their ids and do not expire.
INSERT INTO new_tokens SELECT id, (SELECT id FROM tenants WHERE name = tokens.tenant), hash, created,
    'token-' || substr(id, 1, 8), NULL, NULL FROM tokens;
DROP TABLE tokens;
ALTER TABLE new_tokens RENAME TO tokens;
CREATE INDEX tokens_of_tenant ON tokens (tenant);

CREATE TABLE cluster_keys (
    cluster     TEXT PRIMARY KEY REFERENCES clusters (id) ON DELETE CASCADE,
    ssh_keys    TEXT NOT NULL,
    key_public  TEXT NOT NULL,
    key_private BLOB NOT NULL
) STRICT;
-- Sealed before the change is committed.
INSERT INTO cluster_keys SELECT id, ssh_keys, key_public, CAST(key_private AS BLOB) FROM clusters;

CREATE TABLE seal (
    one  INTEGER PRIMARY KEY CHECK (one = 1),
    mark BLOB NOT NULL
) STRICT;

CREATE TABLE new_clusters (
    id          TEXT PRIMARY KEY,
    tenant      TEXT NOT NULL REFERENCES tenants (id),
    name        TEXT NOT NULL,
    size        INTEGER NOT NULL,
    cores       INTEGER NOT NULL,
    memory_mib  INTEGER NOT NULL,
    mode        TEXT NOT NULL,
    image       TEXT NOT NULL,
    phase       TEXT NOT NULL,
    reason      TEXT,
    partition   INTEGER UNIQUE,
    generation  INTEGER NOT NULL,
    created     TEXT NOT NULL,
    class       TEXT NOT NULL,
    sl_mode     TEXT NOT NULL,
    inner_partitions TEXT NOT NULL,
    view_wish   TEXT,
    network     TEXT NOT NULL,
    UNIQUE (tenant, name)
) STRICT;
INSERT INTO new_clusters SELECT id, (SELECT id FROM tenants WHERE name = clusters.tenant), name, size, cores, memory_mib, mode,
    image, phase, reason, partition, generation, created, class, sl_mode, inner_partitions, view_wish, '{"state":"unchecked"}' FROM clusters;
ALTER TABLE nodes ADD COLUMN network TEXT;
DROP TABLE clusters;
ALTER TABLE new_clusters RENAME TO clusters;
CREATE INDEX clusters_by_age ON clusters (created, id);

-- If two clusters have the same number, the migration fails here: an operator must resolve the conflict.
CREATE TABLE partition_numbers (
    number   INTEGER PRIMARY KEY,
    tenant   TEXT,
    cluster  TEXT REFERENCES clusters (id),
    kind     TEXT CHECK (kind IN ('own', 'inner', 'view')),
    released INTEGER,
    CHECK ((cluster IS NULL) = (released IS NOT NULL))
) STRICT;
INSERT INTO partition_numbers SELECT partition, tenant, id, 'own', NULL FROM clusters WHERE partition IS NOT NULL;
INSERT INTO partition_numbers SELECT inside.value ->> '$.number', tenant, clusters.id, 'inner', NULL
    FROM clusters, json_each(inner_partitions) AS inside;
INSERT INTO partition_numbers SELECT inside.value ->> '$.number', tenant, clusters.id, 'view', NULL
    FROM clusters, json_each(view_wish, '$.partitions') AS inside WHERE view_wish IS NOT NULL;
-- Quarantines restart: the wall clock that measured them may have stepped.
INSERT OR IGNORE INTO partition_numbers SELECT number, NULL, NULL, NULL, 0 FROM resting_partitions;
DROP TABLE resting_partitions;
-- Numbers above the highest assigned one are fresh; unassigned ones below count as past their quarantine.
INSERT OR IGNORE INTO fabric SELECT 1, '{}', max(number) FROM partition_numbers HAVING count(*) > 0;
UPDATE fabric SET last_partition = max(last_partition, coalesce((SELECT max(number) FROM partition_numbers), 0));
WITH RECURSIVE below (number) AS (
    SELECT 256 WHERE 256 <= (SELECT last_partition FROM fabric)
    UNION ALL SELECT number + 1 FROM below WHERE number < (SELECT last_partition FROM fabric)
) INSERT OR IGNORE INTO partition_numbers SELECT number, NULL, NULL, NULL, -1000000000 FROM below;
CREATE INDEX partition_numbers_of_cluster ON partition_numbers (cluster);
CREATE INDEX partition_numbers_of_tenant ON partition_numbers (tenant, released);
CREATE INDEX partition_numbers_by_release ON partition_numbers (released, number);

CREATE TABLE new_operations (
    id         TEXT PRIMARY KEY,
    tenant_id  TEXT,
    tenant     TEXT NOT NULL,
    cluster    TEXT NOT NULL,
    cluster_id TEXT NOT NULL,
    kind       TEXT NOT NULL,
    state      TEXT NOT NULL,
    reason     TEXT,
    started    TEXT NOT NULL,
    ended      TEXT,
    steps      TEXT NOT NULL,
    began      INTEGER NOT NULL
) STRICT;
INSERT INTO new_operations SELECT id, (SELECT id FROM tenants WHERE name = operations.tenant AND created <= operations.started),
    tenant, cluster, cluster_id, kind, state, reason, started, ended, steps, 0 FROM operations;
DROP TABLE operations;
ALTER TABLE new_operations RENAME TO operations;
CREATE INDEX operations_by_start ON operations (started);
CREATE INDEX operations_of_tenant ON operations (tenant_id, started);
CREATE INDEX operations_running ON operations (cluster_id) WHERE state = 'running';

ALTER TABLE events ADD COLUMN tenant_id TEXT;
UPDATE events SET tenant_id = (SELECT id FROM tenants WHERE name = events.tenant AND created <= events.at)
    WHERE tenant IS NOT NULL;
CREATE INDEX events_of_tenant ON events (tenant_id, number);

CREATE TABLE clock (
    one     INTEGER PRIMARY KEY CHECK (one = 1),
    elapsed INTEGER NOT NULL
) STRICT;
INSERT INTO clock VALUES (1, 0);

-- A host is bound to the port of its nodes, if they all have the same one and no other host has it.
ALTER TABLE hosts ADD COLUMN port_guid TEXT;
UPDATE hosts SET port_guid = (SELECT min(port_guid) FROM nodes WHERE host = hosts.name)
    WHERE (SELECT count(DISTINCT port_guid) FROM nodes WHERE host = hosts.name) = 1;
UPDATE hosts SET port_guid = NULL WHERE port_guid IN (SELECT port_guid FROM hosts GROUP BY port_guid HAVING count(*) > 1);
CREATE UNIQUE INDEX hosts_by_port ON hosts (port_guid);

ALTER TABLE nodes ADD COLUMN fenced INTEGER NOT NULL DEFAULT 0;

CREATE TABLE faults (
    kind  TEXT NOT NULL,
    host  TEXT NOT NULL,
    since TEXT NOT NULL,
    PRIMARY KEY (kind, host)
) STRICT;
