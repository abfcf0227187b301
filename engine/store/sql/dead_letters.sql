-- Dead letters as tenants see them: finally failed runs, listed newest first, retried or deleted by filter.

-- name: dead_letters_page
-- dead_letters.of_tenant backwards, which has the primary key behind it; at most scan_max rows are read.
SELECT s.* FROM (
  SELECT died_at, partition_id, scheduled_at, job_id, name, version, state, trigger_kind, attempt, tries, reason,
         outcome, status_code, started_at, finished_at, demoted
  FROM dead_letters FORCE INDEX (of_tenant)
  WHERE tenant_id = :tenant_id AND died_at <= :died_to
    AND (died_at < :died_to OR (partition_id, scheduled_at, job_id) < (:partition_id, :scheduled_at, :job_id))
  ORDER BY died_at DESC, partition_id DESC, scheduled_at DESC, job_id DESC LIMIT :scan_max
) AS s
WHERE (:name IS NULL OR s.name = :name)
  AND s.name >= :from_name AND s.name < :to_name
  AND (:from_at IS NULL OR s.scheduled_at >= :from_at) AND (:to_at IS NULL OR s.scheduled_at <= :to_at)
ORDER BY s.died_at DESC, s.partition_id DESC, s.scheduled_at DESC, s.job_id DESC LIMIT :rows_max

-- name: dead_letter_after_scan
SELECT died_at, partition_id, scheduled_at, job_id
FROM dead_letters FORCE INDEX (of_tenant)
WHERE tenant_id = :tenant_id AND died_at <= :died_to
  AND (died_at < :died_to OR (partition_id, scheduled_at, job_id) < (:partition_id, :scheduled_at, :job_id))
ORDER BY died_at DESC, partition_id DESC, scheduled_at DESC, job_id DESC LIMIT 1 OFFSET :skipped

-- name: lock_failed_runs
-- The failed runs behind these dead letters; one whose day has gone has no row any more.
SELECT r.partition_id, r.scheduled_at, r.job_id, r.state, r.attempt, r.tries, r.worker_id, r.trigger_kind, r.version,
       r.priority, r.reason, r.tenant_id
FROM (VALUES :rows) AS k (partition_id, scheduled_at, job_id)
STRAIGHT_JOIN runs AS r
  ON r.partition_id = k.partition_id AND r.scheduled_at = k.scheduled_at AND r.job_id = k.job_id
STRAIGHT_JOIN dead_letters AS d
  ON d.partition_id = k.partition_id AND d.scheduled_at = k.scheduled_at AND d.job_id = k.job_id
STRAIGHT_JOIN jobs AS j ON j.partition_id = k.partition_id AND j.job_id = k.job_id
WHERE r.scheduled_at BETWEEN :from_at AND :to_at AND r.state = 5 AND d.tenant_id = :tenant_id AND j.alive = 1
FOR UPDATE OF r, d

-- name: revive_runs
-- The one door out of a final state: the tries start again, the attempt goes on. Its reason is RETRY: a pause holds it.
UPDATE (VALUES :rows) AS k (partition_id, scheduled_at, job_id, attempt)
STRAIGHT_JOIN runs AS r
  ON r.partition_id = k.partition_id AND r.scheduled_at = k.scheduled_at AND r.job_id = k.job_id
SET r.state = 3, r.tries = 0, r.reason = 1, r.outcome = NULL, r.status_code = NULL, r.started_at = NULL,
    r.finished_at = NULL, r.worker_id = NULL, r.lease_until = NULL, r.cancel_requested = 0
WHERE r.scheduled_at BETWEEN :from_at AND :to_at AND r.state = 5 AND r.attempt = k.attempt

-- name: lock_letters_of_gone_days
-- Of these dead letters' runs no row is left: the letter is the whole run.
SELECT d.partition_id, d.scheduled_at, d.job_id, d.state, d.attempt, d.tries, d.worker_id, d.trigger_kind, d.version,
       d.priority, d.reason, d.tenant_id
FROM (VALUES :rows) AS k (partition_id, scheduled_at, job_id)
STRAIGHT_JOIN dead_letters AS d
  ON d.partition_id = k.partition_id AND d.scheduled_at = k.scheduled_at AND d.job_id = k.job_id
STRAIGHT_JOIN jobs AS j ON j.partition_id = k.partition_id AND j.job_id = k.job_id
WHERE d.tenant_id = :tenant_id AND j.alive = 1
FOR UPDATE OF d

-- name: revive_letters
-- Their runs stand in the piece day_start from now on, as revive_runs leaves those whose day is there.
INSERT INTO runs (partition_id, scheduled_at, job_id, tenant_id, version, state, priority, trigger_kind, attempt,
                  tries, reason)
SELECT d.partition_id, d.scheduled_at, d.job_id, d.tenant_id, d.version, 3, d.priority, d.trigger_kind, d.attempt, 0, 1
FROM (VALUES :rows) AS k (partition_id, scheduled_at, job_id)
STRAIGHT_JOIN dead_letters AS d
  ON d.partition_id = k.partition_id AND d.scheduled_at = k.scheduled_at AND d.job_id = k.job_id

-- name: dead_letter_by_key
-- The newest job's of those that had a name.
SELECT scheduled_at, job_id, version, state, trigger_kind, attempt, tries, reason, outcome, status_code,
       started_at, finished_at, demoted
FROM dead_letters
WHERE partition_id = :partition_id AND scheduled_at = :scheduled_at AND job_id IN (:job_ids)
ORDER BY job_id DESC LIMIT 1

-- name: delete_dead_letters
DELETE d FROM (VALUES :rows) AS k (partition_id, scheduled_at, job_id)
STRAIGHT_JOIN dead_letters AS d
  ON d.partition_id = k.partition_id AND d.scheduled_at = k.scheduled_at AND d.job_id = k.job_id
WHERE d.tenant_id = :tenant_id
