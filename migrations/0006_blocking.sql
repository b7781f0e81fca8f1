-- Whether somebody waits for the task's first end (the tool `Task`): 1 while that is so, 2 when it went
-- on without. Fewer of those that are waited for work at a time.
ALTER TABLE task ADD COLUMN blocking INTEGER NOT NULL DEFAULT 0;

-- The same key begins the same run: for callers that lost their connection.
ALTER TABLE run ADD COLUMN key TEXT;
