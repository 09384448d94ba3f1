-- Only SQLite: artifacts go with their job, whoever deletes it. (No guard made from a declaration: those have names in
-- keptwork_, and are replaced when a declaration changes.)
CREATE TRIGGER jobs_drop_artifacts AFTER DELETE ON jobs BEGIN
    DELETE FROM artifacts WHERE tenant_id = OLD.tenant_id AND job_id = OLD.id; END;
