-- The newest state of a tool call, over the one in its message's body. A message with many calls and
-- long outputs would otherwise be written again whole whenever one of its calls begins or ends.
CREATE TABLE call (
  message INTEGER NOT NULL REFERENCES message (seq) ON DELETE CASCADE,
  part    INTEGER NOT NULL,  -- which part of the message it is
  state   TEXT NOT NULL,     -- as JSON, in place of the part's `state`
  PRIMARY KEY (message, part)
) WITHOUT ROWID;

-- Permissions and questions of children, and when they were first seen: the time they are parked goes
-- on across restarts. They leave with their task.
CREATE TABLE ask (
  id    TEXT PRIMARY KEY,
  task  INTEGER NOT NULL REFERENCES task (seq) ON DELETE CASCADE,
  since INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX ask_task ON ask (task);

-- How often somebody said something that is to be answered. A run that ends may set the session to
-- rest only if nothing was said since it looked.
ALTER TABLE session ADD COLUMN said INTEGER NOT NULL DEFAULT 0;

-- What lists show of a result is cut; these were written before that.
DELETE FROM view WHERE length(json) > 32000;

-- The messages of a session in their order, without sorting: the sorter would copy their bodies, which
-- may be megabytes each.
CREATE INDEX message_session ON message (session);
