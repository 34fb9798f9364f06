-- Part of every schema from version 5 on; created after all other tables.

-- One row: identity of the store. `revision` grows with every change that an older copy would undo.
CREATE TABLE site (
    one      INTEGER PRIMARY KEY CHECK (one = 1),
    id       TEXT NOT NULL,
    epoch    INTEGER NOT NULL,          -- grows when an operator accepts a lost or restored store
    revision INTEGER NOT NULL,
    sequence INTEGER NOT NULL           -- of the last host specs
) STRICT;

INSERT INTO site VALUES (1, lower(hex(randomblob(16))), 1, 0, 0);

-- Virtual machines without a node, until their agents have reported their removal.
CREATE TABLE tombstones (
    vm      TEXT PRIMARY KEY,
    host    TEXT NOT NULL,
    ordered TEXT NOT NULL
) STRICT;

-- Partition numbers of unlisted virtual machines, as reported by agents; withheld from clusters.
CREATE TABLE held_partitions (
    number INTEGER NOT NULL,
    vm     TEXT NOT NULL,
    host   TEXT NOT NULL,
    PRIMARY KEY (number, vm)
) STRICT;

CREATE TRIGGER tenants_added AFTER INSERT ON tenants BEGIN UPDATE site SET revision = revision + 1; END;
CREATE TRIGGER tenants_changed AFTER UPDATE ON tenants BEGIN UPDATE site SET revision = revision + 1; END;
CREATE TRIGGER tenants_removed AFTER DELETE ON tenants BEGIN UPDATE site SET revision = revision + 1; END;
CREATE TRIGGER tokens_added AFTER INSERT ON tokens BEGIN UPDATE site SET revision = revision + 1; END;
CREATE TRIGGER tokens_removed AFTER DELETE ON tokens BEGIN UPDATE site SET revision = revision + 1; END;
CREATE TRIGGER hosts_added AFTER INSERT ON hosts BEGIN UPDATE site SET revision = revision + 1; END;
CREATE TRIGGER hosts_changed AFTER UPDATE ON hosts BEGIN UPDATE site SET revision = revision + 1; END;
CREATE TRIGGER hosts_removed AFTER DELETE ON hosts BEGIN UPDATE site SET revision = revision + 1; END;
CREATE TRIGGER clusters_added AFTER INSERT ON clusters BEGIN UPDATE site SET revision = revision + 1; END;
CREATE TRIGGER clusters_changed AFTER UPDATE ON clusters BEGIN UPDATE site SET revision = revision + 1; END;
CREATE TRIGGER clusters_removed AFTER DELETE ON clusters BEGIN UPDATE site SET revision = revision + 1; END;
CREATE TRIGGER nodes_added AFTER INSERT ON nodes BEGIN UPDATE site SET revision = revision + 1; END;
CREATE TRIGGER nodes_changed AFTER UPDATE ON nodes BEGIN UPDATE site SET revision = revision + 1; END;
CREATE TRIGGER nodes_removed AFTER DELETE ON nodes BEGIN UPDATE site SET revision = revision + 1; END;
CREATE TRIGGER tombstones_added AFTER INSERT ON tombstones BEGIN UPDATE site SET revision = revision + 1; END;
CREATE TRIGGER tombstones_removed AFTER DELETE ON tombstones BEGIN UPDATE site SET revision = revision + 1; END;
