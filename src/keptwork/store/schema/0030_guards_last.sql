-- The guards once more, as they are: only the last such line counts, and SQLite reads every trigger again whenever a
-- table gets a column. Put in last, they take a new database a third of the time.

--: guards 95a6d327aa85381c
