-- How long a run was without a slot after its prompt had been sent, in milliseconds: that is no time at work.
ALTER TABLE run ADD COLUMN waited INTEGER NOT NULL DEFAULT 0;
