-- Workers, partition leases and signals. Leases say who works; they decide nothing that must be true.

-- name: register_worker
INSERT INTO workers (worker_id, host, pid, pid_started, started_at, heartbeat_at, lease_until)
VALUES (:worker_id, :host, :pid, :pid_started, :now_ms, :now_ms,
        CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED) + :lease_ms)

-- name: heartbeat
-- Renewed by the shard's clock. An expired lease may be renewed (after an outage everybody's is), a condemned one,
-- whose lease_until is 0, never again: its runs are being given to others.
UPDATE workers
SET heartbeat_at = CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED),
    lease_until = CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED) + :lease_ms, draining = :draining
WHERE worker_id = :worker_id AND lease_until > 0

-- name: live_workers
SELECT worker_id, draining, CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED) FROM workers
WHERE lease_until > CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED)

-- name: release_worker
-- Its supervisor has seen it die, or it stops cleanly: whatever it held may be taken at once.
UPDATE workers SET lease_until = 0 WHERE worker_id = :worker_id

-- name: workers_of_host
SELECT worker_id, pid, pid_started FROM workers WHERE host = :host AND lease_until > 0

-- name: expired_workers
-- Released or condemned ones have lease_until 0.
SELECT worker_id, lease_until FROM workers
WHERE lease_until <= CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED)

-- name: condemn_worker
-- Compare-and-set against its heartbeat: from here on the worker cannot come back under this id.
UPDATE workers SET lease_until = 0
WHERE worker_id = :worker_id AND lease_until <= CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED)

-- name: delete_worker
DELETE FROM workers WHERE worker_id = :worker_id AND lease_until = 0

-- name: my_leases
SELECT partition_id, term FROM leases WHERE worker_id = :worker_id

-- name: free_leases
-- Partitions without a live holder.
SELECT l.partition_id FROM leases AS l LEFT JOIN workers AS w ON w.worker_id = l.worker_id
WHERE w.worker_id IS NULL OR w.lease_until <= CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED)
ORDER BY l.partition_id
LIMIT :rows_max

-- name: take_leases
-- Compare-and-set on the holder: of two takers one finds the row.
UPDATE leases AS l LEFT JOIN workers AS w ON w.worker_id = l.worker_id
SET l.worker_id = :worker_id, l.term = l.term + 1
WHERE l.partition_id IN (:partitions)
  AND (w.worker_id IS NULL OR w.lease_until <= CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED))

-- name: give_leases
UPDATE leases SET worker_id = NULL, term = term + 1 WHERE partition_id IN (:partitions) AND worker_id = :worker_id

-- name: read_signals
SELECT signal_id, kind, partition_id, scheduled_at, job_id, attempt FROM signals
WHERE worker_id = :worker_id ORDER BY signal_id LIMIT :rows_max

-- name: delete_signals
DELETE FROM signals WHERE worker_id = :worker_id AND signal_id <= :signal_id

-- name: delete_signals_of_worker
-- Nobody is left to obey them.
DELETE FROM signals WHERE worker_id = :worker_id
