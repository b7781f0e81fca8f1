//! SQLite as a file: opening and migrating it (`open`), the corruption latch (`damage`), online backup (`copy`),
//! salvage (`repair`), values that do not have the types of their columns (`bad_rows`), vacuum and checkpoints
//! (`space`), and the pragmas for that. No other file of the store knows which engine it is.

pub(super) mod bad_rows;
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
    pub(super) kind: ColumnKind,
    pub(super) required: bool,
    /// Its position in the primary key, from 1; 0 when it is no part of it.
    key: i64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ColumnKind {
    Text,
    Number,
    Bytes,
}

impl Column {
    pub(super) fn is_text(&self) -> bool {
        self.kind == ColumnKind::Text
    }

    pub(super) fn is_key(&self) -> bool {
        self.key > 0
    }
}

pub(super) fn columns(db: &Connection, table: &str) -> Result<Vec<Column>, Error> {
    let columns = "SELECT name, type, \"notnull\", pk FROM pragma_table_info(?1) ORDER BY cid";
    Ok(db.query_all(columns, [table], |row| {
        let kind = match row.get::<&str>(1)? {
            "TEXT" => ColumnKind::Text,
            "BLOB" => ColumnKind::Bytes,
            _ => ColumnKind::Number,
        };
        let key = row.get(3)?;
        // SQLite lets a key be null where a table has row numbers; ours never are.
        Ok(Column { name: row.get(0)?, kind, required: row.get::<bool>(2)? || key > 0, key })
    })?)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
