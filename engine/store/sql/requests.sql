-- Calls that must have their effect once: their answers, written in the transaction of the effect.

-- name: requests_by_key
SELECT key_hash, body_hash, status, answer FROM requests WHERE (tenant_id, key_hash) IN (:tuples)

-- name: insert_requests
INSERT INTO requests (tenant_id, key_hash, body_hash, status, answer, written_at) VALUES :tuples

-- name: insert_missing_requests
-- Answers of what had no effect, beside those that stand since theirs.
INSERT INTO requests (tenant_id, key_hash, body_hash, status, answer, written_at) VALUES :tuples
ON DUPLICATE KEY UPDATE tenant_id = requests.tenant_id

-- name: delete_old_requests
DELETE FROM requests WHERE written_at < :before ORDER BY written_at LIMIT :rows_max
