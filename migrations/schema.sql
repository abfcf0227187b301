-- What the numbered migrations add up to on the first shard; others lack the tables of files marked `-- only: first`.
-- Written by `python -m migrations.schema > migrations/schema.sql`; to change it, add a migration.

CREATE TABLE `active` (
  `partition_id` smallint unsigned NOT NULL,
  `job_id` bigint unsigned NOT NULL,
  `scheduled_at` bigint NOT NULL,
  PRIMARY KEY (`partition_id`,`job_id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

CREATE TABLE `api_keys` (
  `key_hash` binary(32) NOT NULL,
  `tenant_id` int unsigned DEFAULT NULL,
  `name` varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  `scope` varchar(255) CHARACTER SET ascii COLLATE ascii_general_ci NOT NULL,
  `created_at` bigint NOT NULL,
  `expires_at` bigint DEFAULT NULL,
  `revoked_at` bigint DEFAULT NULL,
  `last_used_at` bigint DEFAULT NULL,
  PRIMARY KEY (`key_hash`),
  KEY `of_tenant` (`tenant_id`,`created_at`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

CREATE TABLE `attempts` (
  `partition_id` smallint unsigned NOT NULL,
  `scheduled_at` bigint NOT NULL,
  `job_id` bigint unsigned NOT NULL,
  `attempt` int unsigned NOT NULL,
  `worker_id` bigint unsigned DEFAULT NULL,
  `outcome` tinyint unsigned NOT NULL,
  `status_code` smallint unsigned DEFAULT NULL,
  `started_at` bigint DEFAULT NULL,
  `finished_at` bigint NOT NULL,
  `detail` varchar(255) DEFAULT NULL,
  `answer` varbinary(1024) DEFAULT NULL,
  PRIMARY KEY (`partition_id`,`scheduled_at`,`job_id`,`attempt`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci
/*!50100 PARTITION BY RANGE (`scheduled_at`)
(PARTITION day_start VALUES LESS THAN (0) ENGINE = InnoDB) */;

CREATE TABLE `brakes` (
  `brake_id` int unsigned NOT NULL AUTO_INCREMENT,
  `kind` tinyint unsigned NOT NULL,
  `what` varchar(320) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  `tenant_id` int unsigned DEFAULT NULL,
  `note` varchar(255) NOT NULL,
  `pulled_at` bigint NOT NULL,
  `pulled_by` varchar(255) NOT NULL,
  `released_at` bigint DEFAULT NULL,
  `released_by` varchar(255) DEFAULT NULL,
  PRIMARY KEY (`brake_id`),
  KEY `released` (`released_at`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

CREATE TABLE `counted` (
  `partition_id` smallint unsigned NOT NULL,
  `counted_to` bigint NOT NULL,
  `seen_to` bigint NOT NULL,
  PRIMARY KEY (`partition_id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

CREATE TABLE `dead_letters` (
  `partition_id` smallint unsigned NOT NULL,
  `scheduled_at` bigint NOT NULL,
  `job_id` bigint unsigned NOT NULL,
  `tenant_id` int unsigned NOT NULL,
  `name` varchar(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  `version` int unsigned NOT NULL,
  `state` tinyint unsigned NOT NULL,
  `priority` tinyint unsigned NOT NULL,
  `trigger_kind` tinyint unsigned NOT NULL,
  `attempt` int unsigned NOT NULL,
  `tries` smallint unsigned NOT NULL,
  `worker_id` bigint unsigned DEFAULT NULL,
  `lease_until` bigint DEFAULT NULL,
  `cancel_requested` tinyint unsigned NOT NULL DEFAULT '0',
  `demoted` tinyint unsigned NOT NULL DEFAULT '0',
  `reason` tinyint unsigned DEFAULT NULL,
  `outcome` tinyint unsigned DEFAULT NULL,
  `status_code` smallint unsigned DEFAULT NULL,
  `started_at` bigint DEFAULT NULL,
  `finished_at` bigint DEFAULT NULL,
  `died_at` bigint NOT NULL,
  PRIMARY KEY (`partition_id`,`scheduled_at`,`job_id`),
  KEY `of_tenant` (`tenant_id`,`died_at`),
  KEY `age` (`died_at`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

CREATE TABLE `deferred` (
  `partition_id` smallint unsigned NOT NULL,
  `scheduled_at` bigint NOT NULL,
  `job_id` bigint unsigned NOT NULL,
  `due_at` bigint NOT NULL,
  `reason` tinyint unsigned NOT NULL,
  `priority` tinyint unsigned NOT NULL,
  `lane` bigint unsigned NOT NULL DEFAULT (`partition_id`),
  `tenant_id` int unsigned NOT NULL DEFAULT '0',
  PRIMARY KEY (`partition_id`,`scheduled_at`,`job_id`),
  KEY `of_job` (`partition_id`,`job_id`),
  KEY `due` (`lane`,`priority`,`due_at`,`tenant_id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

CREATE TABLE `doors` (
  `door_id` bigint unsigned NOT NULL,
  `since_at` bigint NOT NULL,
  `seen_at` bigint NOT NULL,
  `claimed` bigint unsigned NOT NULL,
  `ended` bigint unsigned NOT NULL,
  `stale` bigint unsigned NOT NULL,
  `waiting` int unsigned NOT NULL,
  PRIMARY KEY (`door_id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

CREATE TABLE `fleet` (
  `id` tinyint unsigned NOT NULL,
  `fleet_id` binary(16) NOT NULL,
  `shard_index` smallint unsigned NOT NULL,
  `shard_count` smallint unsigned NOT NULL,
  `partition_count` smallint unsigned NOT NULL,
  `history` varchar(16) CHARACTER SET ascii COLLATE ascii_general_ci NOT NULL DEFAULT 'mysql',
  PRIMARY KEY (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

CREATE TABLE `floor` (
  `id` tinyint unsigned NOT NULL,
  `floor_at` bigint NOT NULL,
  `closed_to` bigint NOT NULL DEFAULT '0',
  `gone_to` bigint NOT NULL DEFAULT '0',
  PRIMARY KEY (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

CREATE TABLE `functions` (
  `tenant_id` int unsigned NOT NULL,
  `name` varchar(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  `asked_at` bigint NOT NULL,
  PRIMARY KEY (`tenant_id`,`name`),
  KEY `age` (`asked_at`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

CREATE TABLE `job_hours` (
  `partition_id` smallint unsigned NOT NULL,
  `hour_at` bigint NOT NULL,
  `job_id` bigint unsigned NOT NULL,
  `succeeded` int unsigned NOT NULL,
  `failed` int unsigned NOT NULL,
  `cancelled` int unsigned NOT NULL,
  `skipped` int unsigned NOT NULL,
  `called` int unsigned NOT NULL,
  `lag_sum_ms` bigint NOT NULL,
  `lag_max_ms` bigint NOT NULL,
  `duration_sum_ms` bigint NOT NULL,
  `duration_max_ms` bigint NOT NULL,
  PRIMARY KEY (`partition_id`,`hour_at`,`job_id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci
/*!50100 PARTITION BY RANGE (`hour_at`)
(PARTITION day_start VALUES LESS THAN (0) ENGINE = InnoDB) */;

CREATE TABLE `job_labels` (
  `tenant_id` int unsigned NOT NULL,
  `label` varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  `value` varchar(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  `name` varchar(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  `partition_id` smallint unsigned NOT NULL,
  `job_id` bigint unsigned NOT NULL,
  PRIMARY KEY (`tenant_id`,`label`,`value`,`name`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

CREATE TABLE `job_versions` (
  `partition_id` smallint unsigned NOT NULL,
  `job_id` bigint unsigned NOT NULL,
  `version` int unsigned NOT NULL,
  `event` tinyint unsigned NOT NULL,
  `state` tinyint unsigned NOT NULL,
  `written_at` bigint NOT NULL,
  `next_run_at` bigint DEFAULT NULL,
  `tzdata` varchar(16) CHARACTER SET ascii COLLATE ascii_general_ci NOT NULL,
  `definition` mediumblob NOT NULL,
  `key_id` char(8) CHARACTER SET ascii COLLATE ascii_general_ci DEFAULT NULL,
  PRIMARY KEY (`partition_id`,`job_id`,`version`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

CREATE TABLE `jobs` (
  `partition_id` smallint unsigned NOT NULL,
  `job_id` bigint unsigned NOT NULL,
  `tenant_id` int unsigned NOT NULL,
  `name` varchar(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  `alive` tinyint unsigned DEFAULT NULL,
  `state` tinyint unsigned NOT NULL,
  `version` int unsigned NOT NULL,
  `priority` tinyint unsigned NOT NULL,
  `overlap` tinyint unsigned NOT NULL,
  `next_run_at` bigint DEFAULT NULL,
  `resume_at` bigint DEFAULT NULL,
  `last_run_at` bigint DEFAULT NULL,
  `created_at` bigint NOT NULL,
  `updated_at` bigint NOT NULL,
  `state_note` varchar(255) DEFAULT NULL,
  PRIMARY KEY (`partition_id`,`job_id`),
  UNIQUE KEY `by_name` (`tenant_id`,`alive`,`name`),
  KEY `due` (`partition_id`,`priority`,`next_run_at`,`tenant_id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

CREATE TABLE `leases` (
  `partition_id` smallint unsigned NOT NULL,
  `worker_id` bigint unsigned DEFAULT NULL,
  `term` bigint unsigned NOT NULL,
  PRIMARY KEY (`partition_id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

CREATE TABLE `limits` (
  `tenant_id` int unsigned NOT NULL,
  `name` varchar(64) CHARACTER SET ascii COLLATE ascii_general_ci NOT NULL,
  `value` bigint unsigned NOT NULL,
  PRIMARY KEY (`tenant_id`,`name`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

CREATE TABLE `listeners` (
  `address` varchar(45) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  `port` smallint unsigned NOT NULL,
  `machine` varchar(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  `seen_at` bigint NOT NULL,
  PRIMARY KEY (`address`,`port`,`machine`),
  KEY `seen` (`seen_at`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

CREATE TABLE `marks` (
  `partition_id` smallint unsigned NOT NULL,
  `mark_at` bigint NOT NULL,
  PRIMARY KEY (`partition_id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

CREATE TABLE `migrations` (
  `number` smallint unsigned NOT NULL,
  `name` varchar(128) CHARACTER SET ascii COLLATE ascii_general_ci NOT NULL,
  `checksum` binary(32) NOT NULL,
  `statements_started` smallint unsigned NOT NULL,
  `statements_done` smallint unsigned NOT NULL,
  `changed_at` bigint NOT NULL,
  PRIMARY KEY (`number`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

CREATE TABLE `notices` (
  `partition_id` smallint unsigned NOT NULL,
  `job_id` bigint unsigned NOT NULL,
  `kind` tinyint unsigned NOT NULL,
  `about_at` bigint NOT NULL,
  `run_at` bigint NOT NULL,
  `tenant_id` int unsigned NOT NULL,
  `version` int unsigned NOT NULL,
  `merged` int unsigned NOT NULL DEFAULT '1',
  `tries` smallint unsigned NOT NULL DEFAULT '0',
  `due_at` bigint NOT NULL,
  `written_at` bigint NOT NULL,
  PRIMARY KEY (`partition_id`,`job_id`,`kind`,`about_at`),
  KEY `due` (`due_at`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

CREATE TABLE `partitions` (
  `partition_id` smallint unsigned NOT NULL,
  `epoch` int unsigned NOT NULL,
  PRIMARY KEY (`partition_id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

CREATE TABLE `recorded` (
  `partition_id` smallint unsigned NOT NULL,
  `recorded_at` bigint NOT NULL,
  `job_id` bigint unsigned NOT NULL,
  `worker_id` bigint unsigned NOT NULL,
  `lease_until` bigint NOT NULL,
  PRIMARY KEY (`partition_id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

CREATE TABLE `recounts` (
  `partition_id` smallint unsigned NOT NULL,
  `hour_at` bigint NOT NULL,
  `due_at` bigint NOT NULL,
  `marks` int unsigned NOT NULL,
  PRIMARY KEY (`partition_id`,`hour_at`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

CREATE TABLE `reports` (
  `partition_id` smallint unsigned NOT NULL,
  `scheduled_at` bigint NOT NULL,
  `job_id` bigint unsigned NOT NULL,
  `attempt` int unsigned NOT NULL,
  `reported_at` bigint NOT NULL,
  `progress` tinyint unsigned DEFAULT NULL,
  `note` varchar(256) DEFAULT NULL,
  `result` mediumblob,
  PRIMARY KEY (`partition_id`,`scheduled_at`,`job_id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci
/*!50100 PARTITION BY RANGE (`scheduled_at`)
(PARTITION day_start VALUES LESS THAN (0) ENGINE = InnoDB) */;

CREATE TABLE `requests` (
  `tenant_id` int unsigned NOT NULL,
  `key_hash` binary(32) NOT NULL,
  `body_hash` binary(32) NOT NULL,
  `status` smallint unsigned DEFAULT NULL,
  `answer` mediumblob,
  `written_at` bigint NOT NULL,
  PRIMARY KEY (`tenant_id`,`key_hash`),
  KEY `age` (`written_at`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

CREATE TABLE `runs` (
  `partition_id` smallint unsigned NOT NULL,
  `scheduled_at` bigint NOT NULL,
  `job_id` bigint unsigned NOT NULL,
  `tenant_id` int unsigned NOT NULL,
  `version` int unsigned NOT NULL,
  `state` tinyint unsigned NOT NULL,
  `priority` tinyint unsigned NOT NULL,
  `trigger_kind` tinyint unsigned NOT NULL,
  `attempt` int unsigned NOT NULL,
  `tries` smallint unsigned NOT NULL DEFAULT '0',
  `worker_id` bigint unsigned DEFAULT NULL,
  `lease_until` bigint DEFAULT NULL,
  `cancel_requested` tinyint unsigned NOT NULL DEFAULT '0',
  `demoted` tinyint unsigned NOT NULL DEFAULT '0',
  `reason` tinyint unsigned DEFAULT NULL,
  `outcome` tinyint unsigned DEFAULT NULL,
  `status_code` smallint unsigned DEFAULT NULL,
  `started_at` bigint DEFAULT NULL,
  `finished_at` bigint DEFAULT NULL,
  PRIMARY KEY (`partition_id`,`scheduled_at`,`job_id`),
  KEY `of_job` (`partition_id`,`job_id`,`scheduled_at`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci
/*!50100 PARTITION BY RANGE (`scheduled_at`)
(PARTITION day_start VALUES LESS THAN (0) ENGINE = InnoDB) */;

CREATE TABLE `secret_keys` (
  `number` int unsigned NOT NULL,
  `key_id` char(8) CHARACTER SET ascii COLLATE ascii_general_ci NOT NULL,
  `added_at` bigint NOT NULL,
  `service_key` varbinary(255) NOT NULL,
  PRIMARY KEY (`number`),
  UNIQUE KEY `by_key` (`key_id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

CREATE TABLE `signals` (
  `worker_id` bigint unsigned NOT NULL,
  `signal_id` bigint unsigned NOT NULL AUTO_INCREMENT,
  `kind` tinyint unsigned NOT NULL,
  `partition_id` smallint unsigned NOT NULL,
  `scheduled_at` bigint NOT NULL,
  `job_id` bigint unsigned NOT NULL,
  `attempt` int unsigned NOT NULL,
  `written_at` bigint NOT NULL,
  PRIMARY KEY (`worker_id`,`signal_id`),
  KEY `sequence` (`signal_id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

CREATE TABLE `signing_secrets` (
  `tenant_id` int unsigned NOT NULL,
  `created_at` bigint NOT NULL,
  `retires_at` bigint DEFAULT NULL,
  `secret` varbinary(255) NOT NULL,
  PRIMARY KEY (`tenant_id`,`created_at`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

CREATE TABLE `skips` (
  `partition_id` smallint unsigned NOT NULL,
  `job_id` bigint unsigned NOT NULL,
  `from_at` bigint NOT NULL,
  `to_at` bigint NOT NULL,
  `skipped` bigint unsigned NOT NULL,
  `reason` tinyint unsigned NOT NULL,
  `version` int unsigned NOT NULL,
  `written_at` bigint NOT NULL,
  PRIMARY KEY (`partition_id`,`job_id`,`from_at`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

CREATE TABLE `tenant_hours` (
  `tenant_id` int unsigned NOT NULL,
  `hour_at` bigint NOT NULL,
  `partition_id` smallint unsigned NOT NULL,
  `succeeded` int unsigned NOT NULL,
  `failed` int unsigned NOT NULL,
  `cancelled` int unsigned NOT NULL,
  `skipped` int unsigned NOT NULL,
  `called` int unsigned NOT NULL,
  `lag_sum_ms` bigint NOT NULL,
  `lag_max_ms` bigint NOT NULL,
  `duration_sum_ms` bigint NOT NULL,
  `duration_max_ms` bigint NOT NULL,
  PRIMARY KEY (`tenant_id`,`hour_at`,`partition_id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci
/*!50100 PARTITION BY RANGE (`hour_at`)
(PARTITION day_start VALUES LESS THAN (0) ENGINE = InnoDB) */;

CREATE TABLE `tenants` (
  `tenant_id` int unsigned NOT NULL AUTO_INCREMENT,
  `name` varchar(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  `created_at` bigint NOT NULL,
  `disabled_at` bigint DEFAULT NULL,
  `on_failure` varchar(8192) DEFAULT NULL,
  PRIMARY KEY (`tenant_id`),
  UNIQUE KEY `by_name` (`name`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;

CREATE TABLE `workers` (
  `worker_id` bigint unsigned NOT NULL,
  `host` varchar(160) NOT NULL,
  `pid` int unsigned NOT NULL,
  `pid_started` bigint unsigned NOT NULL,
  `started_at` bigint NOT NULL,
  `heartbeat_at` bigint NOT NULL,
  `lease_until` bigint NOT NULL,
  `draining` tinyint unsigned NOT NULL DEFAULT '0',
  PRIMARY KEY (`worker_id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;
