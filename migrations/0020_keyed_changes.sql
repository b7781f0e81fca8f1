-- What a call has changed so far, under its idempotency key: a repeat after a crash does what is left to do, and
-- answers with all of it.
CREATE TABLE keyed_change (
  key  TEXT NOT NULL,
  part TEXT NOT NULL,     -- a task's or a request's id, or what is counted
  n    INTEGER NOT NULL,
  at   INTEGER NOT NULL,
  PRIMARY KEY (key, part)
) WITHOUT ROWID;

CREATE INDEX keyed_change_at ON keyed_change (at);
