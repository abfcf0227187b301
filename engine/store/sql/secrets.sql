-- Keys of secrets, and sealing again what older keys have sealed.

-- name: secret_keys
SELECT key_id, added_at, service_key, number FROM secret_keys ORDER BY number

-- name: insert_secret_key
-- The next number: of two processes that have seen the same keys one is first.
INSERT INTO secret_keys (number, key_id, added_at, service_key) VALUES (:number, :key_id, :now_ms, :service_key)

-- name: delete_other_secret_keys
DELETE FROM secret_keys WHERE key_id <> :key_id

-- name: last_job_of_page
-- The end of a page: job_versions by primary key. NULL where nothing follows.
SELECT MAX(job_id) FROM (
  SELECT DISTINCT job_id FROM job_versions
  WHERE partition_id = :partition_id AND job_id > :after_id ORDER BY job_id LIMIT :rows_max
) AS page

-- name: versions_of_other_keys
SELECT partition_id, job_id, version, key_id, definition FROM job_versions
WHERE partition_id = :partition_id AND job_id > :after_id AND job_id <= :last_id AND key_id <> :key_id

-- name: reseal_versions
-- Only what still has the key it was read with.
UPDATE (VALUES :rows) AS k (partition_id, job_id, version, was, key_id, definition)
STRAIGHT_JOIN job_versions AS v FORCE INDEX (PRIMARY)
  ON v.partition_id = k.partition_id AND v.job_id = k.job_id AND v.version = k.version
SET v.definition = k.definition, v.key_id = k.key_id
WHERE v.key_id = k.was

-- name: plain_versions
-- What stands in the clear since before secrets were encrypted: a page of job_versions by primary key.
SELECT partition_id, job_id, version, definition FROM job_versions
WHERE partition_id = :partition_id AND job_id > :after_id AND job_id <= :last_id AND key_id IS NULL
  AND LOCATE(:secret_mark, definition) > 0

-- name: seal_versions
UPDATE (VALUES :rows) AS k (partition_id, job_id, version, key_id, definition)
STRAIGHT_JOIN job_versions AS v FORCE INDEX (PRIMARY)
  ON v.partition_id = k.partition_id AND v.job_id = k.job_id AND v.version = k.version
SET v.definition = k.definition, v.key_id = k.key_id
WHERE v.key_id IS NULL

-- name: plain_signing_secrets
-- Sealed ones are longer. One row for each tenant and rotation: read whole.
SELECT tenant_id, created_at, secret FROM signing_secrets WHERE LENGTH(secret) = :bytes LIMIT :rows_max

-- name: signing_secrets_of_other_keys
SELECT tenant_id, created_at, secret FROM signing_secrets
WHERE (tenant_id > :tenant_id OR (tenant_id = :tenant_id AND created_at > :created_at))
  AND LEFT(secret, 8) <> CAST(:key_id AS BINARY)
ORDER BY tenant_id, created_at LIMIT :rows_max

-- name: reseal_signing_secrets
UPDATE (VALUES :rows) AS k (tenant_id, created_at, was, secret)
STRAIGHT_JOIN signing_secrets AS s FORCE INDEX (PRIMARY) ON s.tenant_id = k.tenant_id AND s.created_at = k.created_at
SET s.secret = k.secret
WHERE s.secret = k.was
