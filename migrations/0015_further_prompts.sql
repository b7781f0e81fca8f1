-- What is said to a run besides its prompt: messages of its parent (`asyncagents_send`), and that an answer does
-- not fit the schema. A row is there before
-- the message is acknowledged. Its message id is minted right before it is sent, because hosts sort by id; those
-- that go along with the run's own prompt have that one's.
CREATE TABLE further_prompt (
  seq        INTEGER PRIMARY KEY,
  task       INTEGER NOT NULL REFERENCES task (seq) ON DELETE CASCADE,
  run        INTEGER NOT NULL,
  text       TEXT NOT NULL,
  key        TEXT,             -- the same key says the same once: for callers that lost their connection
  created_at INTEGER NOT NULL,
  message_id TEXT,
  sent_at    INTEGER,
  correction INTEGER NOT NULL DEFAULT 0  -- an answer did not fit the schema
);
CREATE INDEX further_prompt_of_run ON further_prompt (task, run, seq);
CREATE UNIQUE INDEX further_prompt_key ON further_prompt (task, key) WHERE key IS NOT NULL;

-- The JSON Schema that results have to fit.
ALTER TABLE task ADD COLUMN schema TEXT;
