-- Places in the queue are counted here and not taken from a clock, which can be set back, and of which several
-- machines have several. The count goes on after what is queued or has a turn.
INSERT INTO counter SELECT 'ticket', max(
  (SELECT coalesce(max(ticket), 0) FROM task WHERE slot > 0),
  (SELECT coalesce(max(ticket), 0) FROM served));
