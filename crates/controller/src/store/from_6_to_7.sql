-- Migrates schema 6 to 7.

-- One row: the partitions of the site, in the format of OpenSM's partitions.conf.
CREATE TABLE site_partitions (
    one  INTEGER PRIMARY KEY CHECK (one = 1),
    conf TEXT NOT NULL
) STRICT;

INSERT INTO site_partitions VALUES (1, '');

-- Their numbers, which clusters do not get.
CREATE TABLE site_partition_numbers (
    number INTEGER PRIMARY KEY
) STRICT;

CREATE TRIGGER site_partitions_changed AFTER UPDATE ON site_partitions BEGIN UPDATE site SET revision = revision + 1; END;
