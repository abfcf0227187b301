-- Dead letters are retried after their day has gone: how far days are closed, and how far they are gone.

-- closed_to: nothing below it is open, nor will be; it is recorded, and goes. gone_to: the days below it have gone; what
-- is retried of them stands in the piece day_start, which never goes.
ALTER TABLE floor
  ADD COLUMN closed_to BIGINT NOT NULL DEFAULT 0,
  ADD COLUMN gone_to   BIGINT NOT NULL DEFAULT 0;
