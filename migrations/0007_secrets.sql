-- Secrets are encrypted (engine/keys.py); which key has sealed what is known, so that keys can be changed.

-- NULL for a definition without secrets. Changed only together with the definition's sealed form, by a rotation.
ALTER TABLE job_versions ADD COLUMN key_id CHAR(8) CHARACTER SET ascii NULL;

-- The keys that may have sealed something, in the order in which they came; of the first shard's table alone anything
-- is read. With each the service's own key, sealed by it: what fingerprints are made with, the same for the fleet's life,
-- and the proof that a key is the right one.
CREATE TABLE IF NOT EXISTS secret_keys (
  number       INT UNSIGNED NOT NULL PRIMARY KEY,
  key_id       CHAR(8) CHARACTER SET ascii NOT NULL,
  added_at     BIGINT NOT NULL,
  service_key  VARBINARY(255) NOT NULL,
  UNIQUE KEY by_key (key_id)
) ENGINE = InnoDB;
