-- What a forked child inherits, as it was at launch, and the message that hands it over.
CREATE TABLE inheritance (
  task       INTEGER PRIMARY KEY REFERENCES task (seq) ON DELETE CASCADE,
  message_id TEXT NOT NULL,  -- the same on every retry
  preamble   TEXT NOT NULL,
  context    TEXT NOT NULL
);
