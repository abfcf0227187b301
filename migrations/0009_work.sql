-- Function runs: handed to tenants' workers by the API's processes.

-- Who claims a deferred row is its lane: below 65,536 the executors that look after this partition, else the workers of
-- one function of one tenant (engine/rules/lanes.py).
ALTER TABLE deferred
  ADD COLUMN lane BIGINT UNSIGNED NOT NULL DEFAULT (partition_id),
  DROP KEY due,
  ADD KEY due (lane, priority, due_at);

-- What a worker says of its run: how far it is, and what came of it. Cut by day as runs are.
CREATE TABLE IF NOT EXISTS reports (
  partition_id  SMALLINT UNSIGNED NOT NULL,
  scheduled_at  BIGINT NOT NULL,
  job_id        BIGINT UNSIGNED NOT NULL,
  attempt       INT UNSIGNED NOT NULL,
  reported_at   BIGINT NOT NULL,
  progress      TINYINT UNSIGNED NULL,
  note          VARCHAR(256) NULL,
  result        MEDIUMBLOB NULL,
  PRIMARY KEY (partition_id, scheduled_at, job_id)
) ENGINE = InnoDB
PARTITION BY RANGE (scheduled_at) (PARTITION day_start VALUES LESS THAN (0));

-- The API's processes that hand out work: in their names function runs are held. since_at moves with every gap in
-- seen_at. The sums are for the metrics.
CREATE TABLE IF NOT EXISTS doors (
  door_id   BIGINT UNSIGNED NOT NULL,
  since_at  BIGINT NOT NULL,
  seen_at   BIGINT NOT NULL,
  claimed   BIGINT UNSIGNED NOT NULL,
  ended     BIGINT UNSIGNED NOT NULL,
  stale     BIGINT UNSIGNED NOT NULL,
  waiting   INT UNSIGNED NOT NULL,
  PRIMARY KEY (door_id)
) ENGINE = InnoDB;

-- When a worker last asked for a function; written twice a minute at most.
CREATE TABLE IF NOT EXISTS functions (
  tenant_id  INT UNSIGNED NOT NULL,
  name       VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  asked_at   BIGINT NOT NULL,
  PRIMARY KEY (tenant_id, name),
  KEY age (asked_at)
) ENGINE = InnoDB;
