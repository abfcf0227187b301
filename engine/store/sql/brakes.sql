-- Operators' brakes, on the first shard. Engines ask every second.

-- name: brakes_since
-- Those in force, and those released since then, so that the release is told as well: two ranges of brakes.released.
SELECT brake_id, kind, what, tenant_id, note, pulled_at, pulled_by, released_at, released_by FROM brakes
WHERE released_at IS NULL
UNION ALL
SELECT brake_id, kind, what, tenant_id, note, pulled_at, pulled_by, released_at, released_by FROM brakes
WHERE released_at >= :released_since
ORDER BY brake_id

-- name: brakes_in_force
SELECT brake_id, kind, what, tenant_id, note, pulled_at, pulled_by, released_at, released_by FROM brakes
WHERE released_at IS NULL
ORDER BY brake_id

-- name: lock_brake
-- One that is in force.
SELECT brake_id, kind, what, tenant_id, note, pulled_at, pulled_by, released_at, released_by FROM brakes
WHERE released_at IS NULL AND kind = :kind AND what = :what
LIMIT 1
FOR UPDATE

-- name: pull_brake
INSERT INTO brakes (kind, what, tenant_id, note, pulled_at, pulled_by)
VALUES (:kind, :what, :tenant_id, :note, :now_ms, :who)

-- name: release_brake
UPDATE brakes SET released_at = :now_ms, released_by = :who
WHERE released_at IS NULL AND kind = :kind AND what = :what

-- name: brakes_used
-- The record, the last use first.
SELECT brake_id, kind, what, tenant_id, note, pulled_at, pulled_by, released_at, released_by FROM brakes
ORDER BY brake_id DESC LIMIT :rows_max
