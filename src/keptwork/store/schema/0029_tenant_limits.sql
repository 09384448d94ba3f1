-- What a tenant may ask of the HTTP API, as a JSON object; for what is not in it, a server's own settings hold.
ALTER TABLE tenants ADD COLUMN limits text;
