-- When somebody asked a running job to come to an end by itself.
ALTER TABLE jobs ADD COLUMN cancel_requested_at {time};
