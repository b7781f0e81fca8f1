//! Quarantine for rows of other tables than `task` (D4): one whose values do not have the types of their columns, which
//! SQLite does not enforce, would keep the others from being read. It is moved to the table `quarantined_row`, as SQL literals, and named by the
//! health and by `doctor`.
//!
//! When the daemon starts, the small tables are looked through that are read as a whole then; `doctor` looks through
//! all. Runs and notices are not moved but mended (`quarantine`): a task without its run, or its parent without its
//! notice, would be lost along with the row.

use std::time::Duration;

use super::{Column, ColumnKind, Connection, Error, columns};
use crate::store::sql::{Row, Value};
use crate::store::subjects::Integrity;

/// Read as a whole when the daemon starts or recovers, and small.
const AT_START: [&str; 4] = ["intent", "process", "tool_call", "instance"];

/// Those that have another way: mended by `quarantine`, or kept by triggers and rebuilt by a repair.
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
    "quarantined_row",
];

/// How many rows are looked at in one read transaction: a long one keeps the write-ahead log from being checkpointed.
const SLICE: i64 = 2_000;

/// How long a read waits for the writer to put something into quarantine. It blocks a thread of the runtime.
pub(in crate::store) const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// A row that was taken out of its table, or mended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuarantinedRow {
    pub table: String,
    /// The column that could not be read.
    pub field: String,
}

/// A bad row, by a condition that finds it.
struct BadRow {
    condition: String,
    field: String,
}

/// A part of a table, in the order of its key.
struct TableSlice {
    bad: Vec<BadRow>,
    /// The key of its last row, as a row value in SQL; `None` at the end of the table.
    last: Option<String>,
}

impl Integrity<'_> {
    /// Looks through the tables that are read as a whole when the daemon starts.
    pub fn quarantine_rows_at_start(&self) -> Result<(), Error> {
        AT_START.iter().try_for_each(|table| self.quarantine_rows_of(table))
    }

    /// Looks through all tables, and drops stored JSON of tasks that is none: it is built again when it is read.
    pub(in crate::store) fn quarantine_all_rows(&self) -> Result<(), Error> {
        let tables: Vec<String> = self.store.read(|db| {
            Ok(db.query_all(
                "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'
                 ORDER BY name",
                (),
                |row| row.get(0),
            )?)
        })?;
        for table in tables.iter().filter(|table| !ELSEWHERE.contains(&table.as_str())) {
            self.quarantine_rows_of(table)?;
        }
        Ok(())
    }

    /// Rows of other tables than `task` that are in quarantine.
    pub fn quarantined_rows(&self) -> Result<Vec<QuarantinedRow>, Error> {
        self.store.read(|db| {
            let all = "SELECT source, field FROM quarantined_row ORDER BY seq";
            Ok(db.query_all(all, (), |row| {
                Ok(QuarantinedRow { table: row.get(0)?, field: row.get(1)? })
            })?)
        })
    }

    /// Those that this process put there.
    pub fn newly_quarantined_rows(&self) -> Vec<QuarantinedRow> {
        self.store.0.quarantined_rows.lock().clone()
    }

    fn quarantine_rows_of(&self, table: &str) -> Result<(), Error> {
        let mut after = None;
        loop {
            let TableSlice { bad, last } =
                self.store.read(|db| slice(db, table, after.as_deref()))?;
            if last.is_none() {
                return Ok(());
            }
            after = last;
            if bad.is_empty() {
                continue;
            }
            let name = table.to_owned();
            let moved = self.store.write(move |db, _| {
                let rows = bad.iter().map(|row| {
                    keep(db, &name, &row.condition, &row.field)?;
                    db.execute(&format!("DELETE FROM {name} WHERE {}", row.condition), ())?;
                    Ok(QuarantinedRow { table: name.clone(), field: row.field.clone() })
                });
                rows.collect::<Result<Vec<QuarantinedRow>, Error>>()
            });
            self.note_rows(moved.wait(LONGEST_WAIT)?);
        }
    }

    pub(in crate::store) fn note_rows(&self, rows: Vec<QuarantinedRow>) {
        for QuarantinedRow { table, field } in &rows {
            tracing::error!(table, field, "row is unreadable; it was quarantined");
        }
        self.store.0.quarantined_rows.lock().extend(rows);
    }
}

/// The bad rows among those that follow a key.
fn slice(db: &Connection, table: &str, after: Option<&str>) -> Result<TableSlice, Error> {
    let columns = columns(db, table)?;
    let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
    let mut keys: Vec<&str> =
        columns.iter().filter(|column| column.is_key()).map(|column| &*column.name).collect();
    if keys.is_empty() {
        keys.push("rowid");
    }
    // Keys as SQL text with literals: one of a wrong type, or that is no UTF-8, has to be found again as it is.
    let literal = |key: &&str| {
        let text = format!("'CAST(x''' || hex({key}) || ''' AS TEXT)'");
        format!("iif(typeof({key}) = 'text', {text}, quote({key}))")
    };
    let literals: Vec<String> = keys.iter().map(literal).collect();
    let key = keys.join(", ");
    let behind = after.map(|after| format!("WHERE ({key}) > {after}")).unwrap_or_default();
    let mut rows = db.prepare(&format!(
        "SELECT {}, '(' || {} || ')' FROM {table} {behind} ORDER BY {key} LIMIT {SLICE}",
        names.join(", "),
        literals.join(" || ', ' || ")
    ))?;
    let mut rows = rows.query(())?;
    let mut slice = TableSlice { bad: Vec::new(), last: None };
    while let Some(row) = rows.next()? {
        let at: String = row.get(columns.len())?;
        if let Some(field) = misfit(row, &columns)? {
            slice.bad.push(BadRow { condition: format!("({key}) IS {at}"), field });
        }
        slice.last = Some(at);
    }
    Ok(slice)
}

/// The first column whose value does not have its type.
pub(in crate::store) fn misfit(row: Row<'_>, columns: &[Column]) -> Result<Option<String>, Error> {
    for (at, column) in columns.iter().enumerate() {
        if !fits(row.value(at)?, column) {
            return Ok(Some(column.name.clone()));
        }
    }
    Ok(None)
}

fn fits(value: Value<'_>, column: &Column) -> bool {
    match (value, column.kind) {
        (Value::Null, _) => !column.required,
        (Value::Text(bytes), ColumnKind::Text) => std::str::from_utf8(bytes).is_ok(),
        (Value::Integer(_), ColumnKind::Number) | (_, ColumnKind::Bytes) => true,
        _ => false,
    }
}

/// Keeps rows as SQL literals (`quote`), which can represent any bytes, for a person to look at.
pub(in crate::store) fn keep(
    db: &Connection,
    table: &str,
    condition: &str,
    field: &str,
) -> Result<(), Error> {
    let quoted: Vec<String> =
        columns(db, table)?.iter().map(|column| format!("quote({})", column.name)).collect();
    db.execute(
        &format!(
            "INSERT INTO quarantined_row (source, field, at, original)
             SELECT ?1, ?2, CAST(unixepoch('subsec') * 1000 AS INTEGER), {} FROM {table}
             WHERE {condition}",
            quoted.join(" || ', ' || ")
        ),
        (table, field),
    )?;
    Ok(())
}
