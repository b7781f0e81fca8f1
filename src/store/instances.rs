//! Servers that were added while the daemon ran.

use super::{Error, Store, Written};

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
}
