-- Only SQLite: where the last key given out is kept. PostgreSQL has a sequence for it.
CREATE TABLE last_key (key INTEGER NOT NULL) STRICT;

INSERT INTO last_key (key) VALUES (0);

-- Time only grows along the log, so this index is only ever appended to.
CREATE INDEX events_by_time ON events (ts);
