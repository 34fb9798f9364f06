-- What was asked for stands apart from what was seen: `wanted` columns are written by requests, the rest by the loops.

CREATE TABLE tenants (
    name    TEXT PRIMARY KEY,
    created TEXT NOT NULL
) STRICT;

CREATE TABLE tokens (
    id      TEXT PRIMARY KEY,
    tenant  TEXT REFERENCES tenants (name) ON DELETE CASCADE,   -- NULL: an operator's
    hash    BLOB NOT NULL UNIQUE,                               -- SHA-256 of 256 random bits: nothing to guess
    created TEXT NOT NULL
) STRICT;

CREATE TABLE hosts (
    name       TEXT PRIMARY KEY,
    agent      TEXT NOT NULL,
    cores      INTEGER NOT NULL,
    memory_mib INTEGER NOT NULL
) STRICT;

CREATE TABLE images (
    name      TEXT PRIMARY KEY,
    directory TEXT NOT NULL,
    digest    TEXT NOT NULL,
    created   TEXT NOT NULL
) STRICT;

CREATE TABLE clusters (
    id          TEXT PRIMARY KEY,
    tenant      TEXT NOT NULL REFERENCES tenants (name),
    name        TEXT NOT NULL,
    size        INTEGER NOT NULL,       -- wanted
    cores       INTEGER NOT NULL,
    memory_mib  INTEGER NOT NULL,
    mode        TEXT NOT NULL,
    image       TEXT NOT NULL,          -- as it was when the cluster was asked for: JSON of an image order
    ssh_keys    TEXT NOT NULL,          -- JSON
    key_public  TEXT NOT NULL,
    key_private TEXT NOT NULL,
    phase       TEXT NOT NULL,
    reason      TEXT,
    partition   INTEGER UNIQUE,
    generation  INTEGER NOT NULL,       -- of what the nodes are told
    created     TEXT NOT NULL,
    class       TEXT NOT NULL,          -- JSON: what the network promises it
    sl_mode     TEXT NOT NULL,          -- how its packets are told from others'
    inner_partitions TEXT NOT NULL,     -- wanted: JSON, with the numbers they got
    view_wish   TEXT,                   -- JSON: what its tenant has set in its network
    UNIQUE (tenant, name)
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
    UNIQUE (host, function)
) STRICT;

CREATE INDEX nodes_of_cluster ON nodes (cluster, number);

-- Numbers that were given back, and when: they rest before they are used again.
CREATE TABLE resting_partitions (
    number   INTEGER PRIMARY KEY,
    released TEXT NOT NULL
) STRICT;

CREATE TABLE operations (
    id         TEXT PRIMARY KEY,
    tenant     TEXT NOT NULL,
    cluster    TEXT NOT NULL,
    cluster_id TEXT NOT NULL,
    kind       TEXT NOT NULL,
    state      TEXT NOT NULL,
    reason     TEXT,
    started    TEXT NOT NULL,
    ended      TEXT,
    steps      TEXT NOT NULL            -- JSON
) STRICT;

CREATE INDEX operations_by_start ON operations (started);

CREATE TABLE events (
    number  INTEGER PRIMARY KEY AUTOINCREMENT,
    at      TEXT NOT NULL,
    tenant  TEXT,
    cluster TEXT,
    kind    TEXT NOT NULL,
    text    TEXT NOT NULL
) STRICT;

-- One row: what was decided about the fabric, JSON.
CREATE TABLE fabric (
    one              INTEGER PRIMARY KEY CHECK (one = 1),
    decisions        TEXT NOT NULL,
    last_partition   INTEGER NOT NULL   -- the number that was given away last: the next one is searched behind it
) STRICT;
