-- The guards once more: on SQLite, what they write and look up for an event takes less time.

--: guards d9e7d081b37fbc65
