-- only: first
-- Operators' brakes, and the record of who pulled and released them: rows stay.

CREATE TABLE IF NOT EXISTS brakes (
  brake_id     INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  kind         TINYINT UNSIGNED NOT NULL,
  what         VARCHAR(320) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  tenant_id    INT UNSIGNED NULL,
  note         VARCHAR(255) NOT NULL,
  pulled_at    BIGINT NOT NULL,
  pulled_by    VARCHAR(255) NOT NULL,
  released_at  BIGINT NULL,
  released_by  VARCHAR(255) NULL,
  KEY released (released_at)
) ENGINE = InnoDB;
