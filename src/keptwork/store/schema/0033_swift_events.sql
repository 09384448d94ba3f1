-- The guards once more: on SQLite, what they write and look up for an event takes less time.

--: guards 48cab6aa73f3a1af
