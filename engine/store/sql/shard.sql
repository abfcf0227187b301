-- Questions to a server about itself.

-- name: shard_now
-- The shard's clock, milliseconds since the epoch; SYSDATE is read when it is reached, not when the statement began.
SELECT CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED)

-- name: max_allowed_packet
SELECT @@max_allowed_packet

-- name: server_version
SELECT VERSION()

-- name: server_facts
-- What the checks at the start look at, as engine/rules/server.py names it.
SELECT (SELECT support FROM information_schema.engines WHERE engine = 'InnoDB'),
       @@SESSION.sql_mode, @@character_set_database, @@performance_schema

-- name: fleet
-- Every column, the key first: before it is migrated, an old shard lacks those that came later.
SELECT * FROM fleet WHERE id = 1

-- name: fleet_table_exists
SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = :database AND table_name = 'fleet'

-- name: create_fleet
INSERT INTO fleet (id, fleet_id, shard_index, shard_count, partition_count, history)
VALUES (1, :fleet_id, :shard_index, :shard_count, :partition_count, :history)

-- name: create_partitions
INSERT INTO partitions (partition_id, epoch) VALUES :tuples

-- name: create_marks
INSERT INTO marks (partition_id, mark_at) VALUES :tuples

-- name: create_leases
INSERT INTO leases (partition_id, worker_id, term) VALUES :tuples

-- name: create_floor
INSERT INTO floor (id, floor_at) VALUES (1, :floor_at)

-- name: placed_partitions
SELECT partition_id FROM partitions ORDER BY partition_id
