-- Part of every schema from version 5 on, made after all other tables.

-- One row: which store this is, and how new. `revision` grows with every change that an older copy would undo.
CREATE TABLE site (
    one      INTEGER PRIMARY KEY CHECK (one = 1),
    id       TEXT NOT NULL,
    epoch    INTEGER NOT NULL,          -- grows when an operator accepts a store that was lost or restored
    revision INTEGER NOT NULL,
    sequence INTEGER NOT NULL           -- of the orders that agents were given last
) STRICT;

INSERT INTO site VALUES (1, lower(hex(randomblob(16))), 1, 0, 0);

-- Virtual machines of no node here that agents are told to remove, until they have reported that they are gone.
CREATE TABLE tombstones (
    vm      TEXT PRIMARY KEY,
    host    TEXT NOT NULL,
    ordered TEXT NOT NULL
) STRICT;

-- Partitions that virtual machines hold which no cluster here knows: reported by agents, given to nobody else.
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
