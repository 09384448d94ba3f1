-- Only PostgreSQL: what decides on a move is now a function of each lifecycle. (`keptwork_enqueue_started` stays for
-- programs that were started before this migration.)
DROP FUNCTION IF EXISTS keptwork_refuse_move();
