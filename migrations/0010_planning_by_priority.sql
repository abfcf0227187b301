-- Where planning is behind, jobs are planned by priority, and those on time beside those that are late.
ALTER TABLE jobs
  DROP KEY due,
  ADD KEY due (partition_id, priority, next_run_at);
