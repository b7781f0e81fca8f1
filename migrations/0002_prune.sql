-- The tasks that ended first.
CREATE INDEX task_by_end ON task (completed_at) WHERE slot = 0;
