-- Servers of hosts that were added while the daemon ran, by the names tasks remember.
CREATE TABLE instance (
  name    TEXT PRIMARY KEY,
  address TEXT NOT NULL
) WITHOUT ROWID;
