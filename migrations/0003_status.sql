-- What the status API answers from, so that no answer grows with the history.

-- Single numbers: `change` is the id of the newest committed change, the others are totals.
CREATE TABLE counter (
  name TEXT PRIMARY KEY,
  n    INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO counter VALUES ('change', 0), ('batches', 0), ('ended', 0), ('ended_millis', 0);

-- An ended task as JSON, ready to be copied into an answer. A live one has no row here.
CREATE TABLE view (
  task INTEGER PRIMARY KEY REFERENCES task (seq) ON DELETE CASCADE,
  json TEXT NOT NULL
);

-- Descriptions with their letters folded, some eighty to a page, to be searched through in one go:
-- those of the tasks from `first` on, `n` in a row, each with a byte behind it that no text has.
CREATE TABLE search (
  first INTEGER PRIMARY KEY,
  n     INTEGER NOT NULL,
  text  BLOB NOT NULL
);

-- What a task's session held when its run `run` had ended, compressed.
CREATE TABLE transcript (
  task INTEGER PRIMARY KEY REFERENCES task (seq) ON DELETE CASCADE,
  run  INTEGER NOT NULL,
  body BLOB NOT NULL
);
ALTER TABLE run ADD COLUMN transcript_owed INTEGER NOT NULL DEFAULT 0;
CREATE INDEX run_transcript_owed ON run (task) WHERE transcript_owed = 1;

-- How long ended tasks took. The sums are counters; the index gives the extremes.
CREATE INDEX task_by_duration ON task (max(completed_at - started_at, 0))
  WHERE completed_at IS NOT NULL;
CREATE TRIGGER task_timed AFTER UPDATE OF completed_at ON task
  WHEN old.completed_at IS NOT new.completed_at BEGIN
  UPDATE counter SET n = n + (new.completed_at IS NOT NULL) - (old.completed_at IS NOT NULL)
    WHERE name = 'ended';
  UPDATE counter SET n = n + coalesce(max(new.completed_at - new.started_at, 0), 0)
      - coalesce(max(old.completed_at - old.started_at, 0), 0)
    WHERE name = 'ended_millis';
END;
CREATE TRIGGER task_timed_at_once AFTER INSERT ON task WHEN new.completed_at IS NOT NULL BEGIN
  UPDATE counter SET n = n + 1 WHERE name = 'ended';
  UPDATE counter SET n = n + max(new.completed_at - new.started_at, 0) WHERE name = 'ended_millis';
END;
CREATE TRIGGER task_time_gone AFTER DELETE ON task WHEN old.completed_at IS NOT NULL BEGIN
  UPDATE counter SET n = n - 1 WHERE name = 'ended';
  UPDATE counter SET n = n - max(old.completed_at - old.started_at, 0) WHERE name = 'ended_millis';
END;
UPDATE counter SET n = (SELECT count(*) FROM task WHERE completed_at IS NOT NULL)
  WHERE name = 'ended';
UPDATE counter SET n = (SELECT coalesce(sum(max(completed_at - started_at, 0)), 0) FROM task
  WHERE completed_at IS NOT NULL) WHERE name = 'ended_millis';

-- Tool calls by the name of the tool.
CREATE TABLE tool_tally (
  name TEXT PRIMARY KEY,
  n    INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TRIGGER tools_counted AFTER UPDATE OF progress ON task
  WHEN old.progress -> '$.toolCallsByName' <> new.progress -> '$.toolCallsByName' BEGIN
  UPDATE tool_tally SET n = n - (SELECT value FROM json_each(old.progress, '$.toolCallsByName')
      WHERE key = tool_tally.name)
    WHERE name IN (SELECT key FROM json_each(old.progress, '$.toolCallsByName'));
  INSERT INTO tool_tally SELECT key, value FROM json_each(new.progress, '$.toolCallsByName')
    WHERE true ON CONFLICT DO UPDATE SET n = n + excluded.n;
END;
CREATE TRIGGER tools_gone AFTER DELETE ON task
  WHEN old.progress -> '$.toolCallsByName' <> '{}' BEGIN
  UPDATE tool_tally SET n = n - (SELECT value FROM json_each(old.progress, '$.toolCallsByName')
      WHERE key = tool_tally.name)
    WHERE name IN (SELECT key FROM json_each(old.progress, '$.toolCallsByName'));
END;
INSERT INTO tool_tally SELECT tool.key, sum(tool.value)
  FROM task, json_each(task.progress, '$.toolCallsByName') tool GROUP BY tool.key;

-- Batches by their newest member, and how many there are.
ALTER TABLE batch ADD COLUMN newest INTEGER NOT NULL DEFAULT 0;
UPDATE batch SET newest = (SELECT max(seq) FROM task WHERE task.batch = batch.id);
CREATE INDEX batch_by_newest ON batch (newest);
DROP TRIGGER task_joined;
CREATE TRIGGER task_joined AFTER INSERT ON task BEGIN
  INSERT INTO batch VALUES (new.batch, 1, new.slot > 0, new.seq)
    ON CONFLICT DO UPDATE
      SET total = total + 1, live = live + excluded.live, newest = excluded.newest;
END;
CREATE TRIGGER batch_begun AFTER INSERT ON batch BEGIN
  UPDATE counter SET n = n + 1 WHERE name = 'batches';
END;
CREATE TRIGGER batch_gone AFTER DELETE ON batch BEGIN
  UPDATE counter SET n = n - 1 WHERE name = 'batches';
END;
UPDATE counter SET n = (SELECT count(*) FROM batch) WHERE name = 'batches';

-- For sorting by it as well as for pruning.
DROP INDEX task_by_end;
CREATE INDEX task_by_end ON task (completed_at);
