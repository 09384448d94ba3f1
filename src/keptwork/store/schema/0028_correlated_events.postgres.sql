CREATE INDEX events_of_correlation ON events (correlation_id, tx, id) WHERE correlation_id IS NOT NULL;
