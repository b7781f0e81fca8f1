-- The queue is paused while there is a row.
CREATE TABLE pause (
  since INTEGER NOT NULL
);
