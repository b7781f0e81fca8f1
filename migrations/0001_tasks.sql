-- A launch that has begun and is not a task yet: what is needed to finish or undo it after a crash.
CREATE TABLE intent (
  nonce          TEXT PRIMARY KEY,
  host           TEXT NOT NULL,
  parent_session TEXT NOT NULL,
  created_at     INTEGER NOT NULL,
  launch         TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE task (
  seq                 INTEGER PRIMARY KEY,
  id                  TEXT NOT NULL UNIQUE,
  short_id            TEXT NOT NULL UNIQUE,
  nonce               TEXT NOT NULL UNIQUE,
  parent_session      TEXT NOT NULL,
  parent_message      TEXT NOT NULL,
  parent_agent        TEXT NOT NULL,
  parent_host         TEXT NOT NULL,
  host                TEXT NOT NULL,
  host_instance       TEXT NOT NULL,
  directory           TEXT NOT NULL,
  description         TEXT NOT NULL,
  agent               TEXT NOT NULL,
  model               TEXT NOT NULL,  -- '' when the host chooses
  batch               TEXT NOT NULL,
  is_forked           INTEGER NOT NULL,
  depth               INTEGER NOT NULL,
  budget              TEXT NOT NULL,
  development         INTEGER NOT NULL,
  status              TEXT NOT NULL,
  error               TEXT,
  started_at          INTEGER NOT NULL,
  completed_at        INTEGER,
  result_retrieved_at INTEGER,
  cleared_at          INTEGER,
  run                 INTEGER NOT NULL,
  result_run          INTEGER,        -- the run whose result is the task's
  slot                INTEGER NOT NULL,  -- 0 none, 1 queued, 2 active
  ticket              INTEGER NOT NULL,  -- the place in the queue
  progress            TEXT NOT NULL,
  tool_calls          INTEGER NOT NULL,
  revision            INTEGER NOT NULL
);
CREATE INDEX task_live ON task (slot, parent_session, ticket) WHERE slot > 0;
CREATE INDEX task_by_parent ON task (parent_session, seq);
CREATE INDEX task_by_batch ON task (batch, seq);
CREATE INDEX task_by_status ON task (status, seq);
CREATE INDEX task_by_agent ON task (agent, seq);
CREATE INDEX task_by_both ON task (status, agent, seq);

CREATE TABLE run (
  seq              INTEGER PRIMARY KEY,
  task             INTEGER NOT NULL REFERENCES task (seq) ON DELETE CASCADE,
  n                INTEGER NOT NULL,
  message_id       TEXT NOT NULL,   -- of the prompt; the same on every retry
  prompt           TEXT NOT NULL,
  came_from        TEXT,            -- the state a failed resume goes back to
  started_at       INTEGER NOT NULL,
  sent_at          INTEGER,
  ended_at         INTEGER,
  ended_as         TEXT,
  result           TEXT,
  error            TEXT,
  open_todos       TEXT,            -- a JSON array, when some were left open
  nudge_id         TEXT,            -- of the prompt that asks to go on with open todos
  nudge_sent_at    INTEGER,
  continue_id      TEXT,            -- of the prompt that goes on after the host was restarted
  continue_sent_at INTEGER,
  stalled          INTEGER NOT NULL DEFAULT 0,
  abort_owed       INTEGER NOT NULL DEFAULT 0  -- its session is still to be stopped
);
CREATE INDEX run_abort_owed ON run (task) WHERE abort_owed = 1;
CREATE UNIQUE INDEX run_of_task ON run (task, n);

-- The outbox, and the mailbox of parents that are no conversation.
CREATE TABLE notice (
  seq            INTEGER PRIMARY KEY,
  task           INTEGER NOT NULL REFERENCES task (seq) ON DELETE CASCADE,
  run            INTEGER NOT NULL,
  nth            INTEGER NOT NULL,  -- 0 tells the run's end, 1 its first stall, 2 its second, …
  parent_host    TEXT NOT NULL,
  parent_session TEXT NOT NULL,
  message_id     TEXT NOT NULL,
  wake           INTEGER NOT NULL,
  batch_ended    INTEGER NOT NULL,
  batch_total    INTEGER NOT NULL,
  quiet_seconds  INTEGER,
  created_at     INTEGER NOT NULL,
  attempts       INTEGER NOT NULL DEFAULT 0,
  due_at         INTEGER NOT NULL,
  delivered_at   INTEGER,
  undeliverable  TEXT,
  read_at        INTEGER
);
-- One notice per run, whatever the code above believes.
CREATE UNIQUE INDEX notice_once ON notice (task, run, nth);
CREATE INDEX notice_owed ON notice (parent_session, seq) WHERE delivered_at IS NULL;
CREATE INDEX notice_unread ON notice (parent_session, seq)
  WHERE parent_host = 'mailbox' AND read_at IS NULL;

-- Totals by state and agent. Triggers keep them, so that no writer can forget.
CREATE TABLE tally (
  status     TEXT NOT NULL,
  agent      TEXT NOT NULL,
  n          INTEGER NOT NULL,
  tool_calls INTEGER NOT NULL,
  PRIMARY KEY (status, agent)
) WITHOUT ROWID;

CREATE TRIGGER task_inserted AFTER INSERT ON task BEGIN
  INSERT INTO tally VALUES (new.status, new.agent, 1, new.tool_calls)
    ON CONFLICT DO UPDATE SET n = n + 1, tool_calls = tool_calls + excluded.tool_calls;
END;
CREATE TRIGGER task_deleted AFTER DELETE ON task BEGIN
  UPDATE tally SET n = n - 1, tool_calls = tool_calls - old.tool_calls
    WHERE status = old.status AND agent = old.agent;
END;
CREATE TRIGGER task_moved AFTER UPDATE OF status, tool_calls ON task
  WHEN old.status <> new.status OR old.tool_calls <> new.tool_calls BEGIN
  UPDATE tally SET n = n - 1, tool_calls = tool_calls - old.tool_calls
    WHERE status = old.status AND agent = old.agent;
  INSERT INTO tally VALUES (new.status, new.agent, 1, new.tool_calls)
    ON CONFLICT DO UPDATE SET n = n + 1, tool_calls = tool_calls + excluded.tool_calls;
END;

-- Size and live members of every batch, for "Task Progress: done/total".
CREATE TABLE batch (
  id    TEXT PRIMARY KEY,
  total INTEGER NOT NULL,
  live  INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TRIGGER task_joined AFTER INSERT ON task BEGIN
  INSERT INTO batch VALUES (new.batch, 1, new.slot > 0)
    ON CONFLICT DO UPDATE SET total = total + 1, live = live + excluded.live;
END;
CREATE TRIGGER task_left AFTER DELETE ON task BEGIN
  UPDATE batch SET total = total - 1, live = live - (old.slot > 0) WHERE id = old.batch;
  DELETE FROM batch WHERE id = old.batch AND total = 0;
END;
CREATE TRIGGER task_ended AFTER UPDATE OF slot ON task
  WHEN (old.slot > 0) <> (new.slot > 0) BEGIN
  UPDATE batch SET live = live + (new.slot > 0) - (old.slot > 0) WHERE id = new.batch;
END;

-- Sessions of the embedded host: what its agents said and did, message by message.
CREATE TABLE session (
  id         TEXT PRIMARY KEY,
  parent     TEXT,
  nonce      TEXT NOT NULL UNIQUE,
  title      TEXT NOT NULL,
  directory  TEXT NOT NULL,
  agent      TEXT NOT NULL,
  deny       TEXT NOT NULL,  -- a JSON array of tool names and patterns
  todos      TEXT NOT NULL,  -- a JSON array
  model      TEXT NOT NULL,  -- of the last prompt; '' when it named none
  running    INTEGER NOT NULL,  -- to be gone on with after a restart
  created_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX session_running ON session (id) WHERE running = 1;

CREATE TABLE message (
  seq     INTEGER PRIMARY KEY,
  session TEXT NOT NULL REFERENCES session (id) ON DELETE CASCADE,
  id      TEXT NOT NULL,
  body    TEXT NOT NULL,
  UNIQUE (session, id)
);
