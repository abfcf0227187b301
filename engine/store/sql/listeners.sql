-- Where the fleet listens, on the first shard.

-- name: note_listeners
INSERT INTO listeners (address, port, machine, seen_at) VALUES :tuples AS new
ON DUPLICATE KEY UPDATE seen_at = GREATEST(listeners.seen_at, new.seen_at)

-- name: live_listeners
-- A range of listeners.seen.
SELECT address, port, machine FROM listeners FORCE INDEX (seen) WHERE seen_at >= :seen_from LIMIT :rows_max

-- name: delete_old_listeners
DELETE FROM listeners WHERE seen_at < :seen_before
