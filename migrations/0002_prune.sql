-- Deleting a task finds its notices by this, and not by reading all of them.
CREATE INDEX notice_of_task ON notice (task);
-- The tasks that ended first.
CREATE INDEX task_by_end ON task (completed_at) WHERE slot = 0;
