-- Statements about the seals of the log, for both databases.

-- name: seals
-- List seals in the order of their numbers.
SELECT {seal_columns} FROM seals WHERE number > :after ORDER BY number LIMIT :limit;

-- name: last_seal
-- Get the newest seal.
SELECT {seal_columns} FROM seals ORDER BY number DESC LIMIT 1;

-- name: put_seal
-- Store the next seal. If several callers seal the same events, only one succeeds.
INSERT INTO seals (number, events, total, sealed_at, after, upto, hash, key)
VALUES (:number, :events, :total, {now}, :after, :upto, :hash, :key)
ON CONFLICT (number) DO NOTHING RETURNING number;
