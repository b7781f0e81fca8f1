-- Runs and notices that could not be decoded: what could not be read of them was replaced, and this is what was there,
-- as SQL literals.
CREATE TABLE mended_row (
  seq      INTEGER PRIMARY KEY,
  source   TEXT NOT NULL,     -- the table
  field    TEXT NOT NULL,     -- the column that could not be read
  at       INTEGER NOT NULL,
  original TEXT NOT NULL
);
