-- Where the jobs of a flow go whose steps name no queue; the usual one if nothing is said.

ALTER TABLE runs ADD COLUMN queue text;

ALTER TABLE workstreams ADD COLUMN queue text;
