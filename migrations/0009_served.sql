-- When parents were last given a slot while somebody waited for one: of those that wait, the one served
-- longest ago is next.
CREATE TABLE served (
  parent TEXT PRIMARY KEY,
  ticket INTEGER NOT NULL
) WITHOUT ROWID;
