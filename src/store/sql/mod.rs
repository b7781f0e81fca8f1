//! A thin façade over the database driver (rusqlite): connection, transaction, savepoint, cached statement, row,
//! values and an error of its own. All other SQL of the store goes through it, so that a second engine is
//! another body of these types and not another store. It decides nothing, and costs nothing per row or value.
//!
//! Transactions and savepoints roll back when they are dropped, so that `?` in the middle of a change leaves
//! nothing behind.

mod value;

use std::ops::Deref;
use std::sync::Arc;

use rusqlite::ErrorCode;

use value::Binding;
pub(super) use value::{FromValue, Params, ToValue, Value};

/// The engine's errors, distinguished where callers act on them differently.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the disk is full")]
    Full,
    #[error("the database cannot be written")]
    ReadOnly,
    #[error("{0}")]
    Damaged(Arc<str>),
    /// A value that cannot be what its column is read as.
    #[error("the value in column {column} of a row is {found}")]
    Value { column: usize, found: &'static str },
    #[error("a query that has to find a row found none")]
    NoRow,
    /// In the engine's words.
    #[error("{0}")]
    Failed(Arc<str>),
}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Error {
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Error::Full,
            Some(ErrorCode::ReadOnly) => Error::ReadOnly,
            // These set the damage latch; everything else may go away again.
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                Error::Damaged(error.to_string().into())
            }
            Some(_) | None => Error::Failed(error.to_string().into()),
        }
    }
}

/// A connection with a cache of prepared statements, keyed by their text: one built by `format!` is planned
/// once per distinct text, so values are bound and never formatted in.
pub(super) struct Connection(rusqlite::Connection);

impl From<rusqlite::Connection> for Connection {
    fn from(db: rusqlite::Connection) -> Connection {
        Connection(db)
    }
}

impl Connection {
    /// For what only this engine has: settings, copies. SQL does not need it.
    pub(super) fn driver(&self) -> &rusqlite::Connection {
        &self.0
    }

    pub(super) fn prepare(&self, sql: &str) -> Result<Statement<'_>, Error> {
        Ok(Statement(self.0.prepare_cached(sql)?))
    }

    /// Returns how many rows were changed.
    pub(super) fn execute(&self, sql: &str, params: impl Params) -> Result<usize, Error> {
        self.prepare(sql)?.execute(params)
    }

    /// The first row, and there has to be one.
    pub(super) fn query_one<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(Row<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.prepare(sql)?.query_one(params, read)
    }

    /// The first row, if there is one.
    pub(super) fn query_opt<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(Row<'_>) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        self.prepare(sql)?.query_opt(params, read)
    }

    /// Every row.
    pub(super) fn query_all<T, All: FromIterator<T>>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnMut(Row<'_>) -> Result<T, Error>,
    ) -> Result<All, Error> {
        self.prepare(sql)?.query_all(params, read)
    }

    /// Every row that can be decoded. The others are logged and left out: where a table is read as a whole, one of
    /// them would keep the rest from being read.
    pub(super) fn query_readable<T>(
        &self,
        sql: &str,
        params: impl Params,
        mut read: impl FnMut(Row<'_>) -> Result<T, Error>,
    ) -> Result<Vec<T>, Error> {
        let rows: Vec<Option<T>> = self.query_all(sql, params, |row| match read(row) {
            Ok(read) => Ok(Some(read)),
            Err(Error::Value { column, found }) => {
                let field = row.column_name(column).unwrap_or("?");
                tracing::error!(
                    sql,
                    field,
                    found,
                    "row is unreadable and left out; see `asyncagents doctor`"
                );
                Ok(None)
            }
            Err(error) => Err(error),
        })?;
        Ok(rows.into_iter().flatten().collect())
    }

    /// Several statements without values.
    pub(super) fn batch(&self, sql: &str) -> Result<(), Error> {
        Ok(self.0.execute_batch(sql)?)
    }

    pub(super) fn in_transaction(&self) -> bool {
        !self.0.is_autocommit()
    }

    /// A deferred transaction: one snapshot for several reads.
    pub(super) fn begin(&self) -> Result<Transaction<'_>, Error> {
        self.execute("BEGIN", ())?;
        Ok(Transaction(self))
    }

    /// Takes the write lock at once and not with the first write. A transaction that has already read cannot
    /// wait for the lock: its snapshot would be outdated, and SQLite fails it instead.
    pub(super) fn begin_write(&self) -> Result<Transaction<'_>, Error> {
        self.execute("BEGIN IMMEDIATE", ())?;
        Ok(Transaction(self))
    }

    /// A part of a transaction that can be rolled back by itself. Savepoints nest under one name: SQLite ends
    /// the innermost of that name first.
    pub(super) fn savepoint(&self) -> Result<Savepoint<'_>, Error> {
        self.execute("SAVEPOINT part", ())?;
        Ok(Savepoint { db: self, is_over: false })
    }

    pub(super) fn close(self) -> Result<(), Error> {
        Ok(self.0.close().map_err(|(_, error)| error)?)
    }
}

/// Rolled back unless it is committed. Not the driver's, which parses `BEGIN` and `ROLLBACK` each time: for
/// a short read that is a tenth of it.
pub(super) struct Transaction<'db>(&'db Connection);

impl Transaction<'_> {
    pub(super) fn commit(self) -> Result<(), Error> {
        self.0.execute("COMMIT", ())?;
        Ok(())
    }
}

impl Deref for Transaction<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.0
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        // It was committed, or the engine ended it by itself, as on a full disk.
        if !self.0.in_transaction() {
            return;
        }
        if let Err(error) = self.0.execute("ROLLBACK", ()) {
            tracing::error!(%error, "store rollback failed; the transaction stays open");
        }
    }
}

/// Rolled back unless it is committed.
pub(super) struct Savepoint<'db> {
    db: &'db Connection,
    is_over: bool,
}

impl Savepoint<'_> {
    pub(super) fn commit(mut self) -> Result<(), Error> {
        self.db.execute("RELEASE part", ())?;
        self.is_over = true;
        Ok(())
    }
}

impl Drop for Savepoint<'_> {
    fn drop(&mut self) {
        if self.is_over || !self.db.in_transaction() {
            return;
        }
        // `ROLLBACK TO` undoes the changes and keeps the savepoint on the stack; without `RELEASE` the next
        // rollback would find this one.
        let back = self.db.execute("ROLLBACK TO part", ());
        if let Err(error) = back.and_then(|_| self.db.execute("RELEASE part", ())) {
            tracing::error!(%error, "savepoint rollback failed; the change may be committed");
        }
    }
}

/// A prepared statement; it goes back to its connection's cache when it is dropped.
pub(super) struct Statement<'db>(rusqlite::CachedStatement<'db>);

impl Statement<'_> {
    /// Returns how many rows were changed.
    pub(super) fn execute(&mut self, params: impl Params) -> Result<usize, Error> {
        Binding::bind(&mut self.0, params)?;
        Ok(self.0.raw_execute()?)
    }

    /// A cursor: rows are read one by one, and no further than they are wanted.
    pub(super) fn query(&mut self, params: impl Params) -> Result<Rows<'_>, Error> {
        Binding::bind(&mut self.0, params)?;
        Ok(Rows(self.0.raw_query()))
    }

    /// The first row, and there has to be one.
    pub(super) fn query_one<T>(
        &mut self,
        params: impl Params,
        read: impl FnOnce(Row<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.query_opt(params, read)?.ok_or(Error::NoRow)
    }

    /// The first row, if there is one.
    pub(super) fn query_opt<T>(
        &mut self,
        params: impl Params,
        read: impl FnOnce(Row<'_>) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        self.query(params)?.next()?.map(read).transpose()
    }

    /// Every row.
    pub(super) fn query_all<T, All: FromIterator<T>>(
        &mut self,
        params: impl Params,
        mut read: impl FnMut(Row<'_>) -> Result<T, Error>,
    ) -> Result<All, Error> {
        let mut rows = self.query(params)?;
        std::iter::from_fn(|| {
            rows.next().and_then(|row| row.map(&mut read).transpose()).transpose()
        })
        .collect()
    }
}

/// A cursor over the rows of a query.
pub(super) struct Rows<'s>(rusqlite::Rows<'s>);

impl Rows<'_> {
    pub(super) fn next(&mut self) -> Result<Option<Row<'_>>, Error> {
        Ok(self.0.next()?.map(Row))
    }
}

/// The cursor's current row. Texts and blobs are borrowed from it, until the cursor moves on.
#[derive(Clone, Copy)]
pub(super) struct Row<'r>(&'r rusqlite::Row<'r>);

impl<'r> Row<'r> {
    pub(super) fn get<T: FromValue<'r>>(self, column: usize) -> Result<T, Error> {
        let value = self.value(column)?;
        T::from_value(value).ok_or_else(|| Error::Value { column, found: value.kind() })
    }

    pub(super) fn value(self, column: usize) -> Result<Value<'r>, Error> {
        Ok(self.0.get_ref(column)?.into())
    }

    pub(super) fn column_name(self, column: usize) -> Option<&'r str> {
        self.0.as_ref().column_name(column).ok()
    }
}
