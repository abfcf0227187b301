-- Tenants, keys and secrets, on the first shard alone. Processes keep what they read for 2 s.

-- name: keys_by_hash
SELECT k.key_hash, k.tenant_id, k.name, k.scope, k.expires_at, k.revoked_at, t.name, t.disabled_at
FROM api_keys AS k LEFT JOIN tenants AS t ON t.tenant_id = k.tenant_id
WHERE k.key_hash IN (:tuples)

-- name: tenants_by_id
SELECT tenant_id, name, disabled_at, on_failure FROM tenants WHERE tenant_id IN (:tuples)

-- name: secrets_by_tenant
-- The newest first: it signs; those that retire later are still shown to receivers.
SELECT tenant_id, secret, created_at, retires_at FROM signing_secrets
WHERE tenant_id IN (:tuples) AND (retires_at IS NULL OR retires_at > :now_ms)
ORDER BY tenant_id, created_at DESC

-- name: limits_by_tenant
SELECT tenant_id, name, value FROM limits WHERE tenant_id IN (:tuples)

-- name: insert_tenant
INSERT INTO tenants (name, created_at) VALUES (:name, :now_ms)

-- name: tenant_by_name
SELECT tenant_id, name, created_at, disabled_at, on_failure FROM tenants WHERE name = :name

-- name: insert_key
INSERT INTO api_keys (key_hash, tenant_id, name, scope, created_at, expires_at)
VALUES (:key_hash, :tenant_id, :name, :scope, :now_ms, :expires_at)

-- name: insert_secret
INSERT INTO signing_secrets (tenant_id, created_at, secret) VALUES (:tenant_id, :now_ms, :secret)

-- name: live_secrets
SELECT secret, created_at, retires_at FROM signing_secrets
WHERE tenant_id = :tenant_id AND (retires_at IS NULL OR retires_at > :now_ms)
ORDER BY created_at DESC

-- name: retire_secrets
UPDATE signing_secrets SET retires_at = :retires_at
WHERE tenant_id = :tenant_id AND (retires_at IS NULL OR retires_at > :retires_at)

-- name: lock_tenant
SELECT tenant_id FROM tenants WHERE tenant_id = :tenant_id FOR UPDATE
