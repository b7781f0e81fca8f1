-- Which version of a task's JSON a row holds. One of another version is built anew from the task's rows
-- when it is read, so that fields added later are there for old tasks, too.
ALTER TABLE view ADD COLUMN schema INTEGER NOT NULL DEFAULT 0;
-- Told readers when what they remembered of descriptions was out of date. They remember nothing now.
DELETE FROM counter WHERE name = 'forgotten';
