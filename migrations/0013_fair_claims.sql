-- Where there is not room for all, planning and claiming are fair between tenants: both indexes name whose an entry is.
ALTER TABLE jobs
  DROP KEY due,
  ADD KEY due (partition_id, priority, next_run_at, tenant_id);

-- 0 is a row of before: such rows count as one tenant's.
ALTER TABLE deferred
  ADD COLUMN tenant_id INT UNSIGNED NOT NULL DEFAULT 0,
  DROP KEY due,
  ADD KEY due (lane, priority, due_at, tenant_id);
