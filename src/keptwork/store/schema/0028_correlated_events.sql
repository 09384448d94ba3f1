-- The events of one flow in the order they were written, which is how they are read. By `seq`, as before, the events of
-- one step lay on as many pages, and each commit wrote them all.
DROP INDEX events_of_correlation;
