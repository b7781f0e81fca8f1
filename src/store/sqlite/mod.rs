//! SQLite as a file: opening and migrating it (`open`), the corruption latch (`damage`), online backup (`copy`),
//! salvage (`repair`), vacuum and checkpoints (`space`), and the pragmas for that. No other file of the store knows
//! which engine it is.

pub(super) mod copy;
pub(super) mod damage;
pub(super) mod open;
pub(super) mod repair;
pub(super) mod space;

use std::path::{Path, PathBuf};

use super::Error;
use super::sql::Connection;

/// A column as its table declares it.
pub(super) struct Column {
    pub(super) name: String,
    pub(super) is_text: bool,
    pub(super) required: bool,
    /// Its position in the primary key, from 1; 0 when it is no part of it.
    key: i64,
}

pub(super) fn columns(db: &Connection, table: &str) -> Result<Vec<Column>, Error> {
    let columns = "SELECT name, type, \"notnull\", pk FROM pragma_table_info(?1) ORDER BY cid";
    Ok(db.query_all(columns, [table], |row| {
        let is_text = row.get::<&str>(1).is_ok_and(|kind| kind == "TEXT");
        Ok(Column { name: row.get(0)?, is_text, required: row.get(2)?, key: row.get(3)? })
    })?)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
