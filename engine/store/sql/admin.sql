-- What operators do to tenants and keys, on the first shard.

-- name: list_tenants
SELECT tenant_id, name, created_at, disabled_at, on_failure FROM tenants ORDER BY name

-- name: set_tenant_disabled
UPDATE tenants SET disabled_at = :disabled_at WHERE tenant_id = :tenant_id

-- name: set_tenant_on_failure
UPDATE tenants SET on_failure = :on_failure WHERE tenant_id = :tenant_id

-- name: set_limit
INSERT INTO limits (tenant_id, name, value) VALUES (:tenant_id, :name, :value) AS new
ON DUPLICATE KEY UPDATE value = new.value

-- name: delete_limit
DELETE FROM limits WHERE tenant_id = :tenant_id AND name = :name

-- name: delete_tenant_limits
DELETE FROM limits WHERE tenant_id = :tenant_id

-- name: delete_tenant_secrets
DELETE FROM signing_secrets WHERE tenant_id = :tenant_id

-- name: delete_tenant_keys
DELETE FROM api_keys WHERE tenant_id = :tenant_id

-- name: delete_tenant
DELETE FROM tenants WHERE tenant_id = :tenant_id

-- name: list_keys
SELECT key_hash, tenant_id, name, scope, created_at, expires_at, revoked_at, last_used_at
FROM api_keys WHERE tenant_id = :tenant_id OR (:tenant_id IS NULL AND tenant_id IS NULL)
ORDER BY created_at, key_hash

-- name: revoke_key
UPDATE api_keys SET revoked_at = :now_ms WHERE key_hash = :key_hash AND revoked_at IS NULL

-- name: expire_key
UPDATE api_keys SET expires_at = LEAST(COALESCE(expires_at, :expires_at), :expires_at) WHERE key_hash = :key_hash

-- name: note_keys_used
UPDATE (VALUES :rows) AS k (key_hash, used_at)
STRAIGHT_JOIN api_keys AS a ON a.key_hash = k.key_hash
SET a.last_used_at = GREATEST(COALESCE(a.last_used_at, 0), k.used_at)
