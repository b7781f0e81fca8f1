//! Servers that were added while the daemon ran, and which process a conversation belongs to.

use rusqlite::OptionalExtension;

use super::{Error, Store, Written};
use crate::task::SessionId;

impl Store {
    /// Names and addresses.
    pub fn instances(&self) -> Result<Vec<(String, String)>, Error> {
        self.read(|db| {
            let mut statement = db.prepare_cached("SELECT name, address FROM instance")?;
            let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    pub fn put_instance(&self, name: String, address: String) -> Written<()> {
        self.write(move |db, _| {
            db.prepare_cached("INSERT OR REPLACE INTO instance VALUES (?1, ?2)")?
                .execute((&name, &address))?;
            Ok(())
        })
    }

    pub fn drop_instance(&self, name: String) -> Written<()> {
        self.write(move |db, _| {
            db.prepare_cached("DELETE FROM instance WHERE name = ?1")?.execute([&name])?;
            Ok(())
        })
    }

    pub fn place_of_parent(&self, session: &SessionId) -> Result<Option<String>, Error> {
        self.read(|db| {
            let mut statement =
                db.prepare_cached("SELECT instance FROM parent_place WHERE session = ?1")?;
            Ok(statement.query_row([session.as_str()], |row| row.get(0)).optional()?)
        })
    }

    pub fn put_place_of_parent(&self, session: &SessionId, instance: String) -> Written<()> {
        let session = session.to_string();
        self.write(move |db, _| {
            db.prepare_cached("INSERT OR REPLACE INTO parent_place VALUES (?1, ?2)")?
                .execute((&session, &instance))?;
            Ok(())
        })
    }
}
