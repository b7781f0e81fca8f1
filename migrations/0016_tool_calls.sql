-- Calls of tools that wait in the daemon while their callers do something else (MCP tasks). They go on after
-- a restart, and their answers are kept for a while, because the same one is given whenever it is asked for.
CREATE TABLE tool_call (
  id          TEXT PRIMARY KEY,  -- cannot be guessed
  parent      TEXT NOT NULL,
  tool        TEXT NOT NULL,
  key         TEXT NOT NULL UNIQUE,  -- idempotency key of the call, and of what it launched
  request     TEXT NOT NULL,     -- as JSON: caller without its credentials, arguments, tasks
  created_at  INTEGER NOT NULL,
  declined    TEXT NOT NULL DEFAULT '[]',  -- permission requests that the client's user left to others
  cancelled   INTEGER NOT NULL DEFAULT 0,
  outcome     TEXT,              -- as JSON, once the client came for it
  settled_at  INTEGER,           -- nothing is left to be done
  received_at INTEGER            -- the client has the answer
);
CREATE INDEX tool_call_open ON tool_call (created_at) WHERE settled_at IS NULL;
CREATE INDEX tool_call_settled ON tool_call (parent, settled_at) WHERE settled_at IS NOT NULL;

-- How permission requests were answered. They leave with their task.
CREATE TABLE permission_answer (
  seq         INTEGER PRIMARY KEY,
  task        INTEGER NOT NULL REFERENCES task (seq) ON DELETE CASCADE,
  ask         TEXT NOT NULL,
  what        TEXT NOT NULL,
  allowed     INTEGER NOT NULL,
  door        TEXT NOT NULL,
  answered_by TEXT NOT NULL,
  answered_at INTEGER NOT NULL
);
CREATE INDEX permission_answer_task ON permission_answer (task);
CREATE INDEX permission_answer_ask ON permission_answer (ask);
