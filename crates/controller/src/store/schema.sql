-- Columns marked `desired` are written by requests, those marked `observed` by the control loops.

-- Names may be reused, ids never: everything that belongs to a tenant refers to its id.
CREATE TABLE tenants (
    id      TEXT PRIMARY KEY,
    name    TEXT NOT NULL UNIQUE,
    created TEXT NOT NULL,
    quota   TEXT NOT NULL               -- JSON: limits set by an operator; the others have their defaults
) STRICT;

CREATE TABLE tokens (
    id      TEXT PRIMARY KEY,
    tenant  TEXT REFERENCES tenants (id) ON DELETE CASCADE,     -- NULL: operator token
    hash    BLOB NOT NULL UNIQUE,                               -- SHA-256 of 256 random bits
    created TEXT NOT NULL,
    name    TEXT NOT NULL,
    expires INTEGER,                    -- ms since 1970; NULL: never
    last_used INTEGER                   -- ms since 1970, to the hour
) STRICT;

CREATE INDEX tokens_of_tenant ON tokens (tenant);

CREATE TABLE hosts (
    name       TEXT PRIMARY KEY,
    agent      TEXT NOT NULL,
    cores      INTEGER NOT NULL,
    memory_mib INTEGER NOT NULL,
    port_guid  TEXT                     -- fabric port; NULL until the host is bound
) STRICT;

CREATE UNIQUE INDEX hosts_by_port ON hosts (port_guid);

CREATE TABLE images (
    name      TEXT PRIMARY KEY,
    directory TEXT NOT NULL,
    digest    TEXT NOT NULL,
    created   TEXT NOT NULL
) STRICT;

CREATE TABLE clusters (
    id          TEXT PRIMARY KEY,
    tenant      TEXT NOT NULL REFERENCES tenants (id),
    name        TEXT NOT NULL,
    size        INTEGER NOT NULL,       -- desired
    cores       INTEGER NOT NULL,
    memory_mib  INTEGER NOT NULL,
    mode        TEXT NOT NULL,
    image       TEXT NOT NULL,          -- JSON: image spec at the time of the request
    phase       TEXT NOT NULL,
    reason      TEXT,
    partition   INTEGER UNIQUE,
    generation  INTEGER NOT NULL,       -- of the context of the nodes
    created     TEXT NOT NULL,
    class       TEXT NOT NULL,          -- JSON: network service class
    sl_mode     TEXT NOT NULL,          -- assignment of service levels
    inner_partitions TEXT NOT NULL,     -- desired: JSON, with the assigned numbers
    view_overlay TEXT,                  -- JSON: changes that the tenant has made in its view of the network
    network     TEXT NOT NULL,          -- observed: JSON, state of the network check
    UNIQUE (tenant, name)
) STRICT;

CREATE INDEX clusters_by_age ON clusters (created, id);

-- Separate from clusters, so that requests that need no key read none. Rows never change.
CREATE TABLE cluster_keys (
    cluster     TEXT PRIMARY KEY REFERENCES clusters (id) ON DELETE CASCADE,
    ssh_keys    TEXT NOT NULL,          -- JSON
    key_public  TEXT NOT NULL,
    key_private BLOB NOT NULL           -- sealed
) STRICT;

-- One row: a known text, sealed with the key of the private keys, to recognize that key.
CREATE TABLE seal (
    one  INTEGER PRIMARY KEY CHECK (one = 1),
    mark BLOB NOT NULL
) STRICT;

CREATE TABLE views (
    cluster TEXT PRIMARY KEY REFERENCES clusters (id) ON DELETE CASCADE,
    names   TEXT NOT NULL           -- JSON: names that the view uses
) STRICT;

CREATE TABLE nodes (
    id        TEXT PRIMARY KEY,
    cluster   TEXT NOT NULL REFERENCES clusters (id) ON DELETE CASCADE,
    number    INTEGER NOT NULL,
    host      TEXT NOT NULL REFERENCES hosts (name),
    port_guid TEXT NOT NULL,
    port      INTEGER NOT NULL,
    function  INTEGER NOT NULL,
    mac       TEXT NOT NULL,
    leaving   INTEGER NOT NULL,         -- desired: to be removed
    joined    INTEGER NOT NULL,         -- announced to the other nodes
    networked INTEGER NOT NULL,         -- observed: its port is a member
    gone      INTEGER NOT NULL,         -- observed: its virtual machine is gone
    state     TEXT NOT NULL,            -- observed
    reason    TEXT,
    ready     INTEGER,                  -- observed: generation it is ready for
    network   TEXT,                     -- observed: JSON, result of its network check; NULL: it does not check
    fenced    INTEGER NOT NULL,         -- desired: removed without confirmation by its host
    UNIQUE (host, function)
) STRICT;

CREATE INDEX nodes_of_cluster ON nodes (cluster, number);

-- Every partition number that was ever assigned. The primary key assigns each to at most one cluster.
CREATE TABLE partition_numbers (
    number   INTEGER PRIMARY KEY,
    tenant   TEXT,                      -- id of the current or last owner, also after its deletion
    cluster  TEXT REFERENCES clusters (id),     -- NULL: released
    kind     TEXT CHECK (kind IN ('own', 'inner', 'view')),
    released INTEGER,                   -- time of release, in ms of the store's clock
    CHECK ((cluster IS NULL) = (released IS NOT NULL))
) STRICT;

CREATE INDEX partition_numbers_of_cluster ON partition_numbers (cluster);
CREATE INDEX partition_numbers_of_tenant ON partition_numbers (tenant, released);
CREATE INDEX partition_numbers_by_release ON partition_numbers (released, number);

CREATE TABLE operations (
    id         TEXT PRIMARY KEY,
    tenant_id  TEXT,                    -- NULL: of a tenant deleted before tenants had ids
    tenant     TEXT NOT NULL,           -- name of the tenant at that time
    cluster    TEXT NOT NULL,
    cluster_id TEXT NOT NULL,
    kind       TEXT NOT NULL,
    state      TEXT NOT NULL,
    reason     TEXT,
    started    TEXT NOT NULL,
    ended      TEXT,
    steps      TEXT NOT NULL,           -- JSON
    began      INTEGER NOT NULL         -- start, in ms of the store's clock
) STRICT;

CREATE INDEX operations_by_start ON operations (started);
CREATE INDEX operations_of_tenant ON operations (tenant_id, started);
CREATE INDEX operations_running ON operations (cluster_id) WHERE state = 'running';

CREATE TABLE events (
    number    INTEGER PRIMARY KEY AUTOINCREMENT,
    at        TEXT NOT NULL,
    tenant_id TEXT,                     -- NULL: event of the site
    tenant    TEXT,                     -- name of the tenant at that time
    cluster   TEXT,
    kind      TEXT NOT NULL,
    text      TEXT NOT NULL
) STRICT;

CREATE INDEX events_of_tenant ON events (tenant_id, number);

-- One row: decisions of the last plan, JSON.
CREATE TABLE fabric (
    one              INTEGER PRIMARY KEY CHECK (one = 1),
    decisions        TEXT NOT NULL,
    last_partition   INTEGER NOT NULL   -- highest partition number ever assigned
) STRICT;

-- One row: total time that controllers have run on this store, in ms. Unlike wall clocks, it does not step.
CREATE TABLE clock (
    one     INTEGER PRIMARY KEY CHECK (one = 1),
    elapsed INTEGER NOT NULL
) STRICT;

INSERT INTO clock VALUES (1, 0);

-- Current faults with their start. The beginning and the end of a fault are recorded as one event each.
CREATE TABLE faults (
    kind  TEXT NOT NULL,
    host  TEXT NOT NULL,                -- '' for a fault of the fabric
    since TEXT NOT NULL,
    PRIMARY KEY (kind, host)
) STRICT;
