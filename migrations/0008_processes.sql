-- Commands of agents, from before they start until nothing they started is left: what the next daemon
-- has to kill when this one could not. A process is named by its id, its start time and the boot.
CREATE TABLE process (
  marker      TEXT PRIMARY KEY,  -- in the environment of everything the command started
  session     TEXT NOT NULL,
  call        TEXT NOT NULL,
  guard_pid   INTEGER NOT NULL,
  guard_start INTEGER NOT NULL,
  boot_id     TEXT NOT NULL,
  created_at  INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX process_by_session ON process (session);
