-- Where finished runs end up. A fleet that is older than this setting has them in MySQL.
ALTER TABLE fleet ADD COLUMN history VARCHAR(16) CHARACTER SET ascii NOT NULL DEFAULT 'mysql';

-- With history in Cassandra: how far each partition has been recorded there. All of its runs below (recorded_at, job_id)
-- in the order of the key stand in Cassandra as they ended. worker_id and lease_until say which recorder is at it, by
-- this shard's clock: for speed only, since who writes a run twice writes the same.
CREATE TABLE IF NOT EXISTS recorded (
  partition_id  SMALLINT UNSIGNED NOT NULL PRIMARY KEY,
  recorded_at   BIGINT NOT NULL,
  job_id        BIGINT UNSIGNED NOT NULL,
  worker_id     BIGINT UNSIGNED NOT NULL,
  lease_until   BIGINT NOT NULL
) ENGINE = InnoDB;
