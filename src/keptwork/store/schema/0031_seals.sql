-- Seals of the log: each covers the events after those of the one before it, in the order of commits, with a hash over
-- them and over that one's hash. They belong to no tenant, as the order of the log does.
CREATE TABLE seals (
    number    {int} NOT NULL PRIMARY KEY,
    events    {int} NOT NULL,
    total     {key} NOT NULL,
    sealed_at {time} NOT NULL,
    after     text,
    upto      text NOT NULL,
    hash      text NOT NULL,
    key       text
) {strict};
