-- Every index ends with the id by itself.
CREATE INDEX events_of_correlation ON events (correlation_id) WHERE correlation_id IS NOT NULL;
