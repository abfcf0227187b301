-- Rollups: what became of each tenant's runs, and of those of busy jobs, by the hour of their scheduled time.
-- Cut by day like runs, so that old ones go without being deleted one by one.

-- How far each partition's runs are counted: whole hours up to counted_to, and of the hour after them up to seen_to.
CREATE TABLE IF NOT EXISTS counted (
  partition_id  SMALLINT UNSIGNED NOT NULL PRIMARY KEY,
  counted_to    BIGINT NOT NULL,
  seen_to       BIGINT NOT NULL
) ENGINE = InnoDB;

-- Counted hours that are to be counted anew: a run was open then, or has been put there since. marks grows with each
-- reason, so that one that comes while another is obeyed is not lost with it.
CREATE TABLE IF NOT EXISTS recounts (
  partition_id  SMALLINT UNSIGNED NOT NULL,
  hour_at       BIGINT NOT NULL,
  due_at        BIGINT NOT NULL,
  marks         INT UNSIGNED NOT NULL,
  PRIMARY KEY (partition_id, hour_at)
) ENGINE = InnoDB;

-- The hour before the job, so that counting appends; a job's hours are looked up one by one. Lag and duration are those
-- of called runs.
CREATE TABLE IF NOT EXISTS job_hours (
  partition_id     SMALLINT UNSIGNED NOT NULL,
  hour_at          BIGINT NOT NULL,
  job_id           BIGINT UNSIGNED NOT NULL,
  succeeded        INT UNSIGNED NOT NULL,
  failed           INT UNSIGNED NOT NULL,
  cancelled        INT UNSIGNED NOT NULL,
  skipped          INT UNSIGNED NOT NULL,
  called           INT UNSIGNED NOT NULL,
  lag_sum_ms       BIGINT NOT NULL,
  lag_max_ms       BIGINT NOT NULL,
  duration_sum_ms  BIGINT NOT NULL,
  duration_max_ms  BIGINT NOT NULL,
  PRIMARY KEY (partition_id, hour_at, job_id)
) ENGINE = InnoDB
PARTITION BY RANGE (hour_at) (PARTITION day_start VALUES LESS THAN (0));

-- One row for each partition in which the tenant had runs: an hour of one partition is counted, and replaced, at once.
CREATE TABLE IF NOT EXISTS tenant_hours (
  tenant_id        INT UNSIGNED NOT NULL,
  hour_at          BIGINT NOT NULL,
  partition_id     SMALLINT UNSIGNED NOT NULL,
  succeeded        INT UNSIGNED NOT NULL,
  failed           INT UNSIGNED NOT NULL,
  cancelled        INT UNSIGNED NOT NULL,
  skipped          INT UNSIGNED NOT NULL,
  called           INT UNSIGNED NOT NULL,
  lag_sum_ms       BIGINT NOT NULL,
  lag_max_ms       BIGINT NOT NULL,
  duration_sum_ms  BIGINT NOT NULL,
  duration_max_ms  BIGINT NOT NULL,
  PRIMARY KEY (tenant_id, hour_at, partition_id)
) ENGINE = InnoDB
PARTITION BY RANGE (hour_at) (PARTITION day_start VALUES LESS THAN (0));
