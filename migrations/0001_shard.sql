-- A shard: jobs, their versions, runs cut by day, and who works on what.
-- Times are BIGINT milliseconds since the epoch, UTC. Enumerations are the numbers of engine/model.py.
-- Lock order everywhere: partitions, marks, floor, jobs, runs, deferred, active; rows sorted by primary key.

-- One row: what this shard is part of. Written at creation, compared at every start.
CREATE TABLE IF NOT EXISTS fleet (
  id               TINYINT UNSIGNED NOT NULL PRIMARY KEY,
  fleet_id         BINARY(16) NOT NULL,
  shard_index      SMALLINT UNSIGNED NOT NULL,
  shard_count      SMALLINT UNSIGNED NOT NULL,
  partition_count  SMALLINT UNSIGNED NOT NULL
) ENGINE = InnoDB;

-- Placement: the partitions this shard holds. PUT, plan and claim read their row FOR SHARE and refuse if it is absent.
CREATE TABLE IF NOT EXISTS partitions (
  partition_id  SMALLINT UNSIGNED NOT NULL PRIMARY KEY,
  epoch         INT UNSIGNED NOT NULL
) ENGINE = InnoDB;

-- All scheduled times of the partition below the mark have been swept: what is open below it has a row in deferred.
CREATE TABLE IF NOT EXISTS marks (
  partition_id  SMALLINT UNSIGNED NOT NULL PRIMARY KEY,
  mark_at       BIGINT NOT NULL
) ENGINE = InnoDB;

-- One row: nothing is put below the floor; days below it are dropped.
CREATE TABLE IF NOT EXISTS floor (
  id        TINYINT UNSIGNED NOT NULL PRIMARY KEY,
  floor_at  BIGINT NOT NULL
) ENGINE = InnoDB;

-- One row per executor start. lease_until is by this shard's clock; 0 is released or condemned, and stays so.
-- host, pid and pid_started (clock ticks since boot) tell the process to its own host.
CREATE TABLE IF NOT EXISTS workers (
  worker_id     BIGINT UNSIGNED NOT NULL PRIMARY KEY,
  host          VARCHAR(160) NOT NULL,
  pid           INT UNSIGNED NOT NULL,
  pid_started   BIGINT UNSIGNED NOT NULL,
  started_at    BIGINT NOT NULL,
  heartbeat_at  BIGINT NOT NULL,
  lease_until   BIGINT NOT NULL,
  draining      TINYINT UNSIGNED NOT NULL DEFAULT 0
) ENGINE = InnoDB;

-- Who plans a partition. A lease is as good as its worker's row; term grows with every change of holder.
CREATE TABLE IF NOT EXISTS leases (
  partition_id  SMALLINT UNSIGNED NOT NULL PRIMARY KEY,
  worker_id     BIGINT UNSIGNED NULL,
  term          BIGINT UNSIGNED NOT NULL
) ENGINE = InnoDB;

-- The jobs. alive is 1, or NULL once deleted, so that a name can be used again while its history lasts.
-- next_run_at is the first time not yet planned: NULL when there is none or the job does not plan (paused, invalid,
-- deleted); resume_at keeps it meanwhile. last_run_at is the newest scheduled time planned so far.
CREATE TABLE IF NOT EXISTS jobs (
  partition_id  SMALLINT UNSIGNED NOT NULL,
  job_id        BIGINT UNSIGNED NOT NULL,
  tenant_id     INT UNSIGNED NOT NULL,
  name          VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  alive         TINYINT UNSIGNED NULL,
  state         TINYINT UNSIGNED NOT NULL,
  version       INT UNSIGNED NOT NULL,
  priority      TINYINT UNSIGNED NOT NULL,
  overlap       TINYINT UNSIGNED NOT NULL,
  next_run_at   BIGINT NULL,
  resume_at     BIGINT NULL,
  last_run_at   BIGINT NULL,
  created_at    BIGINT NOT NULL,
  updated_at    BIGINT NOT NULL,
  state_note    VARCHAR(255) NULL,
  PRIMARY KEY (partition_id, job_id),
  UNIQUE KEY by_name (tenant_id, alive, name),
  KEY due (partition_id, next_run_at, priority)
) ENGINE = InnoDB;

-- Immutable: every create, edit, pause, resume and delete writes one. next_run_at is the job's after the change.
CREATE TABLE IF NOT EXISTS job_versions (
  partition_id  SMALLINT UNSIGNED NOT NULL,
  job_id        BIGINT UNSIGNED NOT NULL,
  version       INT UNSIGNED NOT NULL,
  event         TINYINT UNSIGNED NOT NULL,
  state         TINYINT UNSIGNED NOT NULL,
  written_at    BIGINT NOT NULL,
  next_run_at   BIGINT NULL,
  tzdata        VARCHAR(16) CHARACTER SET ascii NOT NULL,
  definition    MEDIUMBLOB NOT NULL,
  PRIMARY KEY (partition_id, job_id, version)
) ENGINE = InnoDB;

-- The runs: the queue and, once finished, the history. The clustered key is the queue order; days are added by the
-- keeper and dropped whole. No secondary index holds a column that a state change moves.
CREATE TABLE IF NOT EXISTS runs (
  partition_id      SMALLINT UNSIGNED NOT NULL,
  scheduled_at      BIGINT NOT NULL,
  job_id            BIGINT UNSIGNED NOT NULL,
  tenant_id         INT UNSIGNED NOT NULL,
  version           INT UNSIGNED NOT NULL,
  state             TINYINT UNSIGNED NOT NULL,
  priority          TINYINT UNSIGNED NOT NULL,
  trigger_kind      TINYINT UNSIGNED NOT NULL,
  attempt           INT UNSIGNED NOT NULL,
  tries             SMALLINT UNSIGNED NOT NULL DEFAULT 0,
  worker_id         BIGINT UNSIGNED NULL,
  lease_until       BIGINT NULL,
  cancel_requested  TINYINT UNSIGNED NOT NULL DEFAULT 0,
  demoted           TINYINT UNSIGNED NOT NULL DEFAULT 0,
  reason            TINYINT UNSIGNED NULL,
  outcome           TINYINT UNSIGNED NULL,
  status_code       SMALLINT UNSIGNED NULL,
  started_at        BIGINT NULL,
  finished_at       BIGINT NULL,
  PRIMARY KEY (partition_id, scheduled_at, job_id),
  KEY of_job (partition_id, job_id, scheduled_at)
) ENGINE = InnoDB
PARTITION BY RANGE (scheduled_at) (PARTITION day_start VALUES LESS THAN (0));

-- One row per failed attempt, with the first 1 KB of the answer.
CREATE TABLE IF NOT EXISTS attempts (
  partition_id  SMALLINT UNSIGNED NOT NULL,
  scheduled_at  BIGINT NOT NULL,
  job_id        BIGINT UNSIGNED NOT NULL,
  attempt       INT UNSIGNED NOT NULL,
  worker_id     BIGINT UNSIGNED NULL,
  outcome       TINYINT UNSIGNED NOT NULL,
  status_code   SMALLINT UNSIGNED NULL,
  started_at    BIGINT NULL,
  finished_at   BIGINT NOT NULL,
  detail        VARCHAR(255) NULL,
  answer        VARBINARY(1024) NULL,
  PRIMARY KEY (partition_id, scheduled_at, job_id, attempt)
) ENGINE = InnoDB
PARTITION BY RANGE (scheduled_at) (PARTITION day_start VALUES LESS THAN (0));

-- Everything due below the mark or at another time than its scheduled_at; such a run is claimed only through here.
CREATE TABLE IF NOT EXISTS deferred (
  partition_id  SMALLINT UNSIGNED NOT NULL,
  scheduled_at  BIGINT NOT NULL,
  job_id        BIGINT UNSIGNED NOT NULL,
  due_at        BIGINT NOT NULL,
  reason        TINYINT UNSIGNED NOT NULL,
  PRIMARY KEY (partition_id, scheduled_at, job_id),
  KEY due (partition_id, due_at),
  KEY of_job (partition_id, job_id)
) ENGINE = InnoDB;

-- The open run of each job whose overlap is skip or wait.
CREATE TABLE IF NOT EXISTS active (
  partition_id  SMALLINT UNSIGNED NOT NULL,
  job_id        BIGINT UNSIGNED NOT NULL,
  scheduled_at  BIGINT NOT NULL,
  PRIMARY KEY (partition_id, job_id)
) ENGINE = InnoDB;

-- Ranges of scheduled times that got no run of their own, each with its reason: from_at and to_at are inclusive.
CREATE TABLE IF NOT EXISTS skips (
  partition_id  SMALLINT UNSIGNED NOT NULL,
  job_id        BIGINT UNSIGNED NOT NULL,
  from_at       BIGINT NOT NULL,
  to_at         BIGINT NOT NULL,
  skipped       BIGINT UNSIGNED NOT NULL,
  reason        TINYINT UNSIGNED NOT NULL,
  version       INT UNSIGNED NOT NULL,
  written_at    BIGINT NOT NULL,
  PRIMARY KEY (partition_id, job_id, from_at)
) ENGINE = InnoDB;

-- Finally failed runs, whole live row included, kept 14 days beyond the runs' own days.
CREATE TABLE IF NOT EXISTS dead_letters (
  partition_id      SMALLINT UNSIGNED NOT NULL,
  scheduled_at      BIGINT NOT NULL,
  job_id            BIGINT UNSIGNED NOT NULL,
  tenant_id         INT UNSIGNED NOT NULL,
  name              VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  version           INT UNSIGNED NOT NULL,
  state             TINYINT UNSIGNED NOT NULL,
  priority          TINYINT UNSIGNED NOT NULL,
  trigger_kind      TINYINT UNSIGNED NOT NULL,
  attempt           INT UNSIGNED NOT NULL,
  tries             SMALLINT UNSIGNED NOT NULL,
  worker_id         BIGINT UNSIGNED NULL,
  lease_until       BIGINT NULL,
  cancel_requested  TINYINT UNSIGNED NOT NULL DEFAULT 0,
  demoted           TINYINT UNSIGNED NOT NULL DEFAULT 0,
  reason            TINYINT UNSIGNED NULL,
  outcome           TINYINT UNSIGNED NULL,
  status_code       SMALLINT UNSIGNED NULL,
  started_at        BIGINT NULL,
  finished_at       BIGINT NULL,
  died_at           BIGINT NOT NULL,
  PRIMARY KEY (partition_id, scheduled_at, job_id),
  KEY of_tenant (tenant_id, died_at),
  KEY age (died_at)
) ENGINE = InnoDB;

-- Outbox of notices to tenants. One row per failed run, one per job, kind and minute for late and skipped ones:
-- about_at is the run's time, or its minute; run_at names the first run that it is about, merged counts them.
CREATE TABLE IF NOT EXISTS notices (
  partition_id  SMALLINT UNSIGNED NOT NULL,
  job_id        BIGINT UNSIGNED NOT NULL,
  kind          TINYINT UNSIGNED NOT NULL,
  about_at      BIGINT NOT NULL,
  run_at        BIGINT NOT NULL,
  tenant_id     INT UNSIGNED NOT NULL,
  version       INT UNSIGNED NOT NULL,
  merged        INT UNSIGNED NOT NULL DEFAULT 1,
  tries         SMALLINT UNSIGNED NOT NULL DEFAULT 0,
  due_at        BIGINT NOT NULL,
  written_at    BIGINT NOT NULL,
  PRIMARY KEY (partition_id, job_id, kind, about_at),
  KEY due (due_at)
) ENGINE = InnoDB;

-- Idempotency keys of API calls, 24 h: the answer is written in the transaction of its effect.
CREATE TABLE IF NOT EXISTS requests (
  tenant_id    INT UNSIGNED NOT NULL,
  key_hash     BINARY(32) NOT NULL,
  body_hash    BINARY(32) NOT NULL,
  status       SMALLINT UNSIGNED NULL,
  answer       MEDIUMBLOB NULL,
  written_at   BIGINT NOT NULL,
  PRIMARY KEY (tenant_id, key_hash),
  KEY age (written_at)
) ENGINE = InnoDB;

-- What a worker must know at once: withdrawn or cancelled runs that it holds. It deletes what it has obeyed.
CREATE TABLE IF NOT EXISTS signals (
  worker_id     BIGINT UNSIGNED NOT NULL,
  signal_id     BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  kind          TINYINT UNSIGNED NOT NULL,
  partition_id  SMALLINT UNSIGNED NOT NULL,
  scheduled_at  BIGINT NOT NULL,
  job_id        BIGINT UNSIGNED NOT NULL,
  attempt       INT UNSIGNED NOT NULL,
  written_at    BIGINT NOT NULL,
  PRIMARY KEY (worker_id, signal_id),
  KEY sequence (signal_id)
) ENGINE = InnoDB;

-- Labels of living jobs, for filters: one page of a label's jobs in name order is one range of the key.
CREATE TABLE IF NOT EXISTS job_labels (
  tenant_id     INT UNSIGNED NOT NULL,
  label         VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  value         VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  name          VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  partition_id  SMALLINT UNSIGNED NOT NULL,
  job_id        BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (tenant_id, label, value, name)
) ENGINE = InnoDB;
