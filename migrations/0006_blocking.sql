-- Whether somebody waits for the task's first end (the tool `Task`): fewer of those work at a time.
ALTER TABLE task ADD COLUMN blocking INTEGER NOT NULL DEFAULT 0;
