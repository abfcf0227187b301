-- Bookkeeping of migrations: which files stand in this database, and how far a half-applied one got.

-- name: database_exists
SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = :database

-- name: create_database
-- `name` stands for the database's, which cannot be a value.
CREATE DATABASE IF NOT EXISTS `name` CHARACTER SET utf8mb4

-- name: lock_migrations
-- One migrator per database; the lock ends with its connection. 1: got it, 0: another holds it.
SELECT GET_LOCK(CONCAT('secondzero migrate ', LEFT(SHA2(DATABASE(), 256), 32)), :seconds)

-- name: create_migrations
-- checksum is of the file's text as far as statements_done; a statement is noted as started before it runs and as done
-- after it, because MySQL commits by itself around each DDL statement.
CREATE TABLE IF NOT EXISTS migrations (
  number              SMALLINT UNSIGNED NOT NULL PRIMARY KEY,
  name                VARCHAR(128) CHARACTER SET ascii NOT NULL,
  checksum            BINARY(32) NOT NULL,
  statements_started  SMALLINT UNSIGNED NOT NULL,
  statements_done     SMALLINT UNSIGNED NOT NULL,
  changed_at          BIGINT NOT NULL
) ENGINE = InnoDB

-- name: migrations
SELECT number, name, checksum, statements_started, statements_done FROM migrations ORDER BY number

-- name: note_statement
INSERT INTO migrations (number, name, checksum, statements_started, statements_done, changed_at)
VALUES (:number, :name, :checksum, :started, :done, CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED))
ON DUPLICATE KEY UPDATE checksum = :checksum, statements_started = :started, statements_done = :done,
  changed_at = CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED)

-- name: tables
SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() ORDER BY table_name

-- name: show_create_table
-- `name` stands for the table's.
SHOW CREATE TABLE `name`
