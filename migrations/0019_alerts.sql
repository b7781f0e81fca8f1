-- The outbox of notifications for people: a row for each way to tell them (`channel`), in the transaction of what it is
-- about, until it was delivered or is too old. No foreign key: it may outlive its task.
CREATE TABLE alert (
  seq        INTEGER PRIMARY KEY,
  channel    TEXT NOT NULL,     -- desktop, webhook, command
  id         TEXT NOT NULL,     -- the receiver's idempotency key
  body       TEXT NOT NULL,     -- as JSON, as it is sent
  attempts   INTEGER NOT NULL DEFAULT 0,
  created_at INTEGER NOT NULL,
  due_at     INTEGER NOT NULL,
  UNIQUE (channel, id)
);

CREATE INDEX alert_due ON alert (channel, due_at);
