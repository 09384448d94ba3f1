"""Keys, scopes and tenants: who may do what."""
