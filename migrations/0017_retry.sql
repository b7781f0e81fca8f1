-- Retries: a failed or cancelled task that was launched again. Both are ids of tasks, without a foreign key,
-- because either task may be pruned before the other.
ALTER TABLE task ADD COLUMN retry_of TEXT;
ALTER TABLE task ADD COLUMN retried_by TEXT;  -- the newest one
