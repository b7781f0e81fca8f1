//! Rows of other tables than `task` whose values do not have the types of their columns, which SQLite does not enforce
//! (D4). Who reads a whole table leaves them out ([`Connection::query_readable`]), and `doctor` names them. They stay
//! where they are: a conversation with one unreadable title is not to be lost.
//!
//! Runs and notices are mended instead (`store/quarantine.rs`): a task without its run, or its parent without its
//! notice, would be lost along with the row.

use std::collections::BTreeMap;

use super::{Column, ColumnKind, Connection, Error, columns};
use crate::store::sql::{Row, Value};
use crate::store::subjects::Integrity;

/// Those that are looked after elsewhere: by `store/quarantine.rs`, or kept by triggers and rebuilt by a repair.
const ELSEWHERE: [&str; 11] = [
    "task",
    "run",
    "notice",
    "view",
    "tally",
    "batch",
    "counter",
    "tool_tally",
    "search",
    "quarantine",
    "mended_row",
];

/// How many rows are looked at in one read transaction: a long one keeps the write-ahead log from being checkpointed.
const SLICE: i64 = 2_000;

/// A row that could not be read before it was mended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableRow {
    pub table: String,
    /// The first column that could not be read.
    pub field: String,
}

/// A part of a table, in the order of its key.
struct TableSlice {
    unreadable: u64,
    /// The key of its last row, as a row value in SQL; `None` at the end of the table.
    last: Option<String>,
}

impl Integrity<'_> {
    /// Looks through all tables for rows that cannot be read, and counts them.
    pub fn unreadable_rows(&self) -> Result<BTreeMap<String, u64>, Error> {
        let tables: Vec<String> = self.store.read(|db| {
            Ok(db.query_all(
                "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'
                 ORDER BY name",
                (),
                |row| row.get(0),
            )?)
        })?;
        let mut found = BTreeMap::new();
        for table in tables.iter().filter(|table| !ELSEWHERE.contains(&table.as_str())) {
            let (mut after, mut number) = (None, 0);
            loop {
                let TableSlice { unreadable, last } =
                    self.store.read(|db| slice(db, table, after.as_deref()))?;
                number += unreadable;
                match last {
                    Some(last) => after = Some(last),
                    None => break,
                }
            }
            if number > 0 {
                found.insert(table.clone(), number);
            }
        }
        Ok(found)
    }
}

/// The rows that follow a key.
fn slice(db: &Connection, table: &str, after: Option<&str>) -> Result<TableSlice, Error> {
    let columns = columns(db, table)?;
    let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
    let mut keys: Vec<&str> =
        columns.iter().filter(|column| column.is_key()).map(|column| &*column.name).collect();
    if keys.is_empty() {
        keys.push("rowid");
    }
    let literals: Vec<String> = keys.iter().map(|key| literal(key)).collect();
    let key = keys.join(", ");
    let behind = after.map(|after| format!("WHERE ({key}) > {after}")).unwrap_or_default();
    let mut rows = db.prepare(&format!(
        "SELECT {}, '(' || {} || ')' FROM {table} {behind} ORDER BY {key} LIMIT {SLICE}",
        names.join(", "),
        literals.join(" || ', ' || ")
    ))?;
    let mut rows = rows.query(())?;
    let mut slice = TableSlice { unreadable: 0, last: None };
    while let Some(row) = rows.next()? {
        slice.unreadable += u64::from(!fits(row, &columns)?);
        slice.last = Some(row.get(columns.len())?);
    }
    Ok(slice)
}

/// Whether all values have the types of their columns.
fn fits(row: Row<'_>, columns: &[Column]) -> Result<bool, Error> {
    for (at, column) in columns.iter().enumerate() {
        let fits = match (row.value(at)?, column.kind) {
            (Value::Null, _) => !column.required,
            (Value::Text(bytes), ColumnKind::Text) => std::str::from_utf8(bytes).is_ok(),
            (Value::Integer(_), ColumnKind::Number) | (_, ColumnKind::Bytes) => true,
            _ => false,
        };
        if !fits {
            return Ok(false);
        }
    }
    Ok(true)
}

/// An SQL expression that makes a literal of a column's value. Text as bytes: `quote` ends at the first NUL, and what
/// is no UTF-8 has to come out as it is.
fn literal(column: &str) -> String {
    let text = format!("'CAST(x''' || hex({column}) || ''' AS TEXT)'");
    format!("iif(typeof({column}) = 'text', {text}, quote({column}))")
}

/// An SQL expression that makes a list of literals of all values of a row.
pub(in crate::store) fn literals(db: &Connection, table: &str) -> Result<String, Error> {
    let columns = columns(db, table)?;
    let literals: Vec<String> = columns.iter().map(|column| literal(&column.name)).collect();
    Ok(literals.join(" || ', ' || "))
}
