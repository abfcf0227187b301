"""The movers: one class for each step of a run, with run_once(now) on top."""
