-- Tasks whose rows could not be decoded: they were ended in error, and this is what was there, as SQL
-- literals. `task` may be gone by now.
CREATE TABLE quarantine (
  task     INTEGER PRIMARY KEY,
  name     TEXT NOT NULL,     -- the short id
  field    TEXT NOT NULL,     -- the column that could not be decoded
  at       INTEGER NOT NULL,
  original TEXT NOT NULL
);

-- As before, but one row that is no JSON does not fail its own update or deletion.
DROP TRIGGER tools_counted;
CREATE TRIGGER tools_counted AFTER UPDATE OF progress ON task
  WHEN json_valid(old.progress) AND json_valid(new.progress)
    AND old.progress -> '$.toolCallsByName' <> new.progress -> '$.toolCallsByName' BEGIN
  UPDATE tool_tally SET n = n - (SELECT value FROM json_each(old.progress, '$.toolCallsByName')
      WHERE key = tool_tally.name)
    WHERE name IN (SELECT key FROM json_each(old.progress, '$.toolCallsByName'));
  INSERT INTO tool_tally SELECT key, value FROM json_each(new.progress, '$.toolCallsByName')
    WHERE true ON CONFLICT DO UPDATE SET n = n + excluded.n;
END;
DROP TRIGGER tools_gone;
CREATE TRIGGER tools_gone AFTER DELETE ON task
  WHEN json_valid(old.progress) AND old.progress -> '$.toolCallsByName' <> '{}' BEGIN
  UPDATE tool_tally SET n = n - (SELECT value FROM json_each(old.progress, '$.toolCallsByName')
      WHERE key = tool_tally.name)
    WHERE name IN (SELECT key FROM json_each(old.progress, '$.toolCallsByName'));
END;
