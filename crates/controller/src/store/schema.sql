-- What was asked for stands apart from what was seen: `wanted` columns are written by requests, the rest by the loops.

-- A name may be used again, an id never: everything that belongs to a tenant refers to its id.
CREATE TABLE tenants (
    id      TEXT PRIMARY KEY,
    name    TEXT NOT NULL UNIQUE,
    created TEXT NOT NULL,
    quota   TEXT NOT NULL               -- JSON: limits that an operator has set; others are the default
) STRICT;

CREATE TABLE tokens (
    id      TEXT PRIMARY KEY,
    tenant  TEXT REFERENCES tenants (id) ON DELETE CASCADE,     -- NULL: an operator's
    hash    BLOB NOT NULL UNIQUE,                               -- SHA-256 of 256 random bits: nothing to guess
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
    port_guid  TEXT                     -- of its port on the fabric; NULL until it is bound
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
    size        INTEGER NOT NULL,       -- wanted
    cores       INTEGER NOT NULL,
    memory_mib  INTEGER NOT NULL,
    mode        TEXT NOT NULL,
    image       TEXT NOT NULL,          -- as it was when the cluster was asked for: JSON of an image order
    phase       TEXT NOT NULL,
    reason      TEXT,
    partition   INTEGER UNIQUE,
    generation  INTEGER NOT NULL,       -- of what the nodes are told
    created     TEXT NOT NULL,
    class       TEXT NOT NULL,          -- JSON: what the network promises it
    sl_mode     TEXT NOT NULL,          -- how its packets are told from others'
    inner_partitions TEXT NOT NULL,     -- wanted: JSON, with the numbers they got
    view_overlay TEXT,                  -- JSON: changes that the tenant has made in its view of the network
    network     TEXT NOT NULL,          -- seen: JSON, how far the check of its network is
    UNIQUE (tenant, name)
) STRICT;

CREATE INDEX clusters_by_age ON clusters (created, id);

-- Apart from their clusters, so that a request that needs no key reads none. Never changed.
CREATE TABLE cluster_keys (
    cluster     TEXT PRIMARY KEY REFERENCES clusters (id) ON DELETE CASCADE,
    ssh_keys    TEXT NOT NULL,          -- JSON
    key_public  TEXT NOT NULL,
    key_private BLOB NOT NULL           -- sealed
) STRICT;

-- One row: something known, sealed with the key that private keys are sealed with.
CREATE TABLE seal (
    one  INTEGER PRIMARY KEY CHECK (one = 1),
    mark BLOB NOT NULL
) STRICT;

CREATE TABLE views (
    cluster TEXT PRIMARY KEY REFERENCES clusters (id) ON DELETE CASCADE,
    names   TEXT NOT NULL           -- JSON: under which names its tenant sees what
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
    leaving   INTEGER NOT NULL,         -- wanted: it is to go
    joined    INTEGER NOT NULL,         -- the others are told of it
    networked INTEGER NOT NULL,         -- seen: the fabric knows it
    gone      INTEGER NOT NULL,         -- seen: its virtual machine is no more
    state     TEXT NOT NULL,            -- seen
    reason    TEXT,
    ready     INTEGER,                  -- seen: the generation it is ready for
    network   TEXT,                     -- seen: JSON, what it has found out about its network; NULL: it does not check
    fenced    INTEGER NOT NULL,         -- wanted: it goes without the word of its host, its port is closed first
    UNIQUE (host, function)
) STRICT;

CREATE INDEX nodes_of_cluster ON nodes (cluster, number);

-- Every partition number that was ever given away. The primary key gives each to one cluster at most.
CREATE TABLE partition_numbers (
    number   INTEGER PRIMARY KEY,
    tenant   TEXT,                      -- id of who has it or had it last, also when that tenant is gone
    cluster  TEXT REFERENCES clusters (id),     -- NULL: released
    kind     TEXT CHECK (kind IN ('own', 'inner', 'view')),
    released INTEGER,                   -- when it was released, in ms of the store's clock
    CHECK ((cluster IS NULL) = (released IS NOT NULL))
) STRICT;

CREATE INDEX partition_numbers_of_cluster ON partition_numbers (cluster);
CREATE INDEX partition_numbers_of_tenant ON partition_numbers (tenant, released);
CREATE INDEX partition_numbers_by_release ON partition_numbers (released, number);

CREATE TABLE operations (
    id         TEXT PRIMARY KEY,
    tenant_id  TEXT,                    -- NULL: of a tenant that was gone before tenants had ids
    tenant     TEXT NOT NULL,           -- what the tenant was called
    cluster    TEXT NOT NULL,
    cluster_id TEXT NOT NULL,
    kind       TEXT NOT NULL,
    state      TEXT NOT NULL,
    reason     TEXT,
    started    TEXT NOT NULL,
    ended      TEXT,
    steps      TEXT NOT NULL,           -- JSON
    began      INTEGER NOT NULL         -- in ms of the store's clock
) STRICT;

CREATE INDEX operations_by_start ON operations (started);
CREATE INDEX operations_of_tenant ON operations (tenant_id, started);
CREATE INDEX operations_running ON operations (cluster_id) WHERE state = 'running';

CREATE TABLE events (
    number    INTEGER PRIMARY KEY AUTOINCREMENT,
    at        TEXT NOT NULL,
    tenant_id TEXT,                     -- NULL: concerns the site
    tenant    TEXT,                     -- what the tenant was called
    cluster   TEXT,
    kind      TEXT NOT NULL,
    text      TEXT NOT NULL
) STRICT;

CREATE INDEX events_of_tenant ON events (tenant_id, number);

-- One row: what was decided about the fabric, JSON.
CREATE TABLE fabric (
    one              INTEGER PRIMARY KEY CHECK (one = 1),
    decisions        TEXT NOT NULL,
    last_partition   INTEGER NOT NULL   -- the highest number that was ever given away
) STRICT;

-- One row: for how long controllers have run on this store, in ms. Wall clocks step, this one does not.
CREATE TABLE clock (
    one     INTEGER PRIMARY KEY CHECK (one = 1),
    elapsed INTEGER NOT NULL
) STRICT;

INSERT INTO clock VALUES (1, 0);

-- What is not well, with since when: events tell once that it began and once that it is over.
CREATE TABLE faults (
    kind  TEXT NOT NULL,
    host  TEXT NOT NULL,                -- '' if it concerns no host
    since TEXT NOT NULL,
    PRIMARY KEY (kind, host)
) STRICT;
