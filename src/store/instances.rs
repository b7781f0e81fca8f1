//! The registry of host servers that were added at run time, and which server each parent conversation is on.
//!
//! Addresses may contain passwords. They are overwritten when they are removed or replaced (`secure_delete`), and the
//! write-ahead log, which has the old page, is emptied afterwards.

use super::sqlite::space::erasing;
use super::subjects::Instances;
use super::{Error, PendingWrite};
use crate::task::{SHELL, SessionId};

impl Instances<'_> {
    /// Names and addresses.
    pub fn all(&self) -> Result<Vec<(String, String)>, Error> {
        self.store.read(|db| {
            Ok(db.query_readable("SELECT name, address FROM instance", (), |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?)
        })
    }

    /// Garbage collection: the names with this prefix that no task needs any more. A task needs its server while it
    /// is live, while an abort or a transcript is owed, and while its notice is undelivered or unread.
    pub fn unneeded(&self, beginning: &'static str) -> Result<Vec<String>, Error> {
        self.store.read(|db| {
            // Every part is served by a partial index, without the rest of the history. Nothing reads the mailbox
            // of the shell, so it is most of what is unread: two ranges, below and above its name, skip it in the
            // index, where `<>` would walk over it.
            let unread = "SELECT n.task FROM notice n
                          WHERE n.parent_host = 'mailbox' AND n.read_at IS NULL AND n.parent_session";
            let unneeded = format!(
                "SELECT name FROM instance WHERE substr(name, 1, length(?1)) = ?1
                 AND name NOT IN (SELECT host_instance FROM task WHERE slot > 0)
                 AND name NOT IN (SELECT host_instance FROM task WHERE seq IN (
                   SELECT r.task FROM run r WHERE r.abort_owed = 1
                   UNION SELECT r.task FROM run r WHERE r.transcript_owed = 1
                   UNION SELECT n.task FROM notice n WHERE n.delivered_at IS NULL
                   UNION {unread} < '{SHELL}' UNION {unread} > '{SHELL}'))
                 ORDER BY name"
            );
            Ok(db.query_all(&unneeded, [beginning], |row| row.get(0))?)
        })
    }

    pub async fn put(self, name: String, address: String) -> Result<(), Error> {
        let written = self.store.write(move |db, _| {
            erasing(db, || {
                db.execute("INSERT OR REPLACE INTO instance VALUES (?1, ?2)", (&name, &address))
            })
        });
        written.await?;
        self.store.empty_log().await
    }

    /// An address may have a password in it: nothing of it stays in the file or its log.
    pub async fn remove(self, name: String) -> Result<(), Error> {
        let written = self.store.write(move |db, _| {
            erasing(db, || db.execute("DELETE FROM instance WHERE name = ?1", [&name]))
        });
        written.await?;
        self.store.empty_log().await
    }

    pub fn place_of_parent(&self, session: &SessionId) -> Result<Option<String>, Error> {
        self.store.read(|db| {
            Ok(db.query_opt(
                "SELECT instance FROM parent_place WHERE session = ?1",
                [session.as_str()],
                |row| row.get(0),
            )?)
        })
    }

    pub fn put_place_of_parent(&self, session: &SessionId, instance: String) -> PendingWrite<()> {
        let session = session.to_string();
        self.store.write(move |db, _| {
            db.execute(
                "INSERT OR REPLACE INTO parent_place VALUES (?1, ?2)",
                (&session, &instance),
            )?;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::store::Store;

    #[tokio::test]
    async fn the_password_of_a_server_that_was_removed_or_changed_is_gone_from_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(&directory.path().join("test.db"), |_| {}).unwrap();
        let found = |word: &str| -> Vec<String> {
            let files = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap());
            let has = |path: &std::path::Path| {
                let bytes = std::fs::read(path).unwrap();
                bytes.windows(word.len()).any(|window| window == word.as_bytes())
            };
            let files = files.filter(|file| has(&file.path()));
            files.map(|file| file.file_name().into_string().unwrap()).collect()
        };
        let put = |name: &str, password: &str| {
            store.instances().put(name.into(), format!("http://me:{password}@127.0.0.1:4096"))
        };
        put("removed", "canary-1").await.unwrap();
        put("changed", "canary-2").await.unwrap();
        put("stays", "canary-3").await.unwrap();
        assert_eq!([found("canary-1"), found("canary-2")], [["test.db"], ["test.db"]]);
        store.instances().remove("removed".into()).await.unwrap();
        put("changed", "another").await.unwrap();
        let gone: [&str; 0] = [];
        assert_eq!(found("canary-1"), gone);
        assert_eq!(found("canary-2"), gone);
        assert_eq!(found("canary-3"), ["test.db"]);
    }
}
