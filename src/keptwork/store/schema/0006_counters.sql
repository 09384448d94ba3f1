-- What is counted, and how far the readers of the log have come that count it.
--
-- A counter belongs to a tenant; 0 is none. Labels are JSON in the order the metric declares them.
CREATE TABLE counters (
    tenant_id {int} NOT NULL,
    name      text NOT NULL,
    labels    text NOT NULL,
    value     {key} NOT NULL,
    PRIMARY KEY (tenant_id, name, labels)
) {strict};

-- A reader moves on in the transaction that writes down what it read, so that no event counts twice and none is missed.
CREATE TABLE log_positions (
    reader text NOT NULL PRIMARY KEY,
    cursor text NOT NULL
) {strict};
