-- Servers of hosts that were added while the daemon ran, by the names tasks remember.
CREATE TABLE instance (
  name    TEXT PRIMARY KEY,
  address TEXT NOT NULL
) WITHOUT ROWID;

-- Conversations on processes that say so themselves: which of them each belongs to.
CREATE TABLE parent_place (
  session  TEXT PRIMARY KEY,
  instance TEXT NOT NULL
) WITHOUT ROWID;
