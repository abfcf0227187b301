-- Jobs as tenants write and read them. Every statement has the tenant in its key: another's name is never looked at.

-- name: find_jobs
-- Living jobs by (tenant, 1, name): jobs.by_name, then two primary keys.
SELECT j.tenant_id, j.name, j.partition_id, j.job_id, j.state, j.version, j.next_run_at, j.resume_at, j.last_run_at,
       j.created_at, j.updated_at, j.state_note, v.definition
FROM jobs AS j
JOIN job_versions AS v ON v.partition_id = j.partition_id AND v.job_id = j.job_id AND v.version = j.version
WHERE (j.tenant_id, j.alive, j.name) IN (:tuples)

-- name: lock_job
-- The shard's time is read after the lock is held: a change is judged by it.
SELECT j.tenant_id, j.name, j.partition_id, j.job_id, j.state, j.version, j.next_run_at, j.resume_at, j.last_run_at,
       j.created_at, j.updated_at, j.state_note, v.definition, CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED)
FROM jobs AS j
JOIN job_versions AS v ON v.partition_id = j.partition_id AND v.job_id = j.job_id AND v.version = j.version
WHERE j.partition_id = :partition_id AND j.job_id = :job_id AND j.alive = 1
FOR UPDATE OF j

-- name: share_placement_with_time
SELECT partition_id, CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED)
FROM partitions WHERE partition_id IN (:partitions) FOR SHARE

-- name: insert_jobs
INSERT INTO jobs (partition_id, job_id, tenant_id, name, alive, state, version, priority, overlap, next_run_at,
                  resume_at, created_at, updated_at)
VALUES :tuples

-- name: insert_versions
INSERT INTO job_versions (partition_id, job_id, version, event, state, written_at, next_run_at, tzdata, definition,
                          key_id)
VALUES :tuples

-- name: insert_labels
INSERT INTO job_labels (tenant_id, label, value, name, partition_id, job_id) VALUES :tuples

-- name: delete_labels
DELETE FROM job_labels WHERE (tenant_id, label, value, name) IN (:tuples)

-- name: update_job
UPDATE jobs
SET alive = :alive, state = :state, version = :version, priority = :priority, overlap = :overlap,
    next_run_at = :next_run_at, resume_at = :resume_at, last_run_at = :last_run_at, updated_at = :updated_at,
    state_note = :note
WHERE partition_id = :partition_id AND job_id = :job_id AND version = :version - 1


-- name: jobs_by_key
SELECT j.tenant_id, j.name, j.partition_id, j.job_id, j.state, j.version, j.next_run_at, j.resume_at, j.last_run_at,
       j.created_at, j.updated_at, j.state_note, v.definition
FROM (VALUES :rows) AS k (partition_id, job_id)
STRAIGHT_JOIN jobs AS j FORCE INDEX (PRIMARY) ON j.partition_id = k.partition_id AND j.job_id = k.job_id
STRAIGHT_JOIN job_versions AS v FORCE INDEX (PRIMARY) ON v.partition_id = j.partition_id AND v.job_id = j.job_id AND v.version = j.version
WHERE j.tenant_id = :tenant_id AND j.alive = 1

-- name: job_ids_of_name
-- Everything that ever had this name, living or deleted, newest first: ids grow with time.
SELECT partition_id, job_id, created_at, alive
FROM jobs FORCE INDEX (by_name)
WHERE tenant_id = :tenant_id AND (alive = 1 OR alive IS NULL) AND name = :name
ORDER BY job_id DESC
