-- Statements about the seals of the log, for both databases.

-- name: seals
-- In the order in which they were made.
SELECT {seal_columns} FROM seals WHERE number > :after ORDER BY number LIMIT :limit;

-- name: last_seal
SELECT {seal_columns} FROM seals ORDER BY number DESC LIMIT 1;

-- name: put_seal
-- Of several who seal the same events, one does.
INSERT INTO seals (number, events, total, sealed_at, after, upto, hash, key)
VALUES (:number, :events, :total, {now}, :after, :upto, :hash, :key)
ON CONFLICT (number) DO NOTHING RETURNING number;
