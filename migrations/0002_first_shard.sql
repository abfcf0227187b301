-- only: first
-- Tenants, keys, secrets and limits: on the first shard alone, re-read by every process every 2 s.

CREATE TABLE IF NOT EXISTS tenants (
  tenant_id    INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  name         VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  created_at   BIGINT NOT NULL,
  disabled_at  BIGINT NULL,
  on_failure   VARCHAR(8192) NULL,
  UNIQUE KEY by_name (name)
) ENGINE = InnoDB;

-- Only a SHA-256 of each key is stored: a key is 160 random bits, so a slow hash would add nothing.
CREATE TABLE IF NOT EXISTS api_keys (
  key_hash      BINARY(32) NOT NULL PRIMARY KEY,
  tenant_id     INT UNSIGNED NULL,
  name          VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  scope         VARCHAR(255) CHARACTER SET ascii NOT NULL,
  created_at    BIGINT NOT NULL,
  expires_at    BIGINT NULL,
  revoked_at    BIGINT NULL,
  last_used_at  BIGINT NULL,
  KEY of_tenant (tenant_id, created_at)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS signing_secrets (
  tenant_id    INT UNSIGNED NOT NULL,
  created_at   BIGINT NOT NULL,
  retires_at   BIGINT NULL,
  secret       VARBINARY(255) NOT NULL,
  PRIMARY KEY (tenant_id, created_at)
) ENGINE = InnoDB;

-- Settings of a tenant that differ from the defaults.
CREATE TABLE IF NOT EXISTS limits (
  tenant_id  INT UNSIGNED NOT NULL,
  name       VARCHAR(64) CHARACTER SET ascii NOT NULL,
  value      BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (tenant_id, name)
) ENGINE = InnoDB;
