-- Pages of the tasks of one host: the count, and the newest ends, which the dashboard shows.
CREATE INDEX task_by_host ON task (host, completed_at);
