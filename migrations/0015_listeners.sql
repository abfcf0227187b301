-- only: first
-- Where the fleet's processes listen and where its databases are: what no tenant may call, from any host. Written again
-- by each process while it is there, and read by all that call.

-- machine is empty, or names the one on which the address means this: loopback, or every address of it.
CREATE TABLE IF NOT EXISTS listeners (
  address  VARCHAR(45) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  port     SMALLINT UNSIGNED NOT NULL,
  machine  VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  seen_at  BIGINT NOT NULL,
  PRIMARY KEY (address, port, machine),
  KEY seen (seen_at)
) ENGINE = InnoDB;
