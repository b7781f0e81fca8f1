-- Providers whose key or address came with the call that opened or resumed the session, and when in
-- milliseconds: a JSON object by name. Nothing of what came is stored. Once that is lost, the session waits
-- for it, with `slot` 3 in its task, rather than use what others have configured.
ALTER TABLE session ADD COLUMN handed TEXT NOT NULL DEFAULT '{}';
