//! Descriptions to be searched through: they are kept a second time, their letters folded, many to a
//! page of the file, so that going through all of them costs little. `find` does that.

use rusqlite::{Connection, OptionalExtension};

use super::Error;

/// Stands behind every description. No text has this byte in it.
pub(super) const END: u8 = 0xff;
/// Stands for a description that is gone, and is found by nobody either.
const GONE: u8 = 0xfe;

/// So much fits into a page of the file; what is longer would be spread over several.
const ROOM: usize = 3900;

/// So many are caught up with at a time.
const CHUNK: usize = 10_000;

/// Capitals and small letters made equal, letter by letter: what surrounds a letter never counts,
/// or else a part of a text would be folded differently from the whole.
pub(super) fn fold(text: &str) -> String {
    if text.is_ascii() {
        return text.to_ascii_lowercase();
    }
    let small = text.chars().flat_map(char::to_lowercase);
    small.map(|letter| if letter == 'ς' { 'σ' } else { letter }).collect()
}

/// Adds the description of the newest task.
pub(super) fn append(db: &Connection, seq: i64, description: &str) -> Result<(), Error> {
    let folded = fold(description);
    let mut newest =
        db.prepare_cached("SELECT first, n, text FROM search ORDER BY first DESC LIMIT 1")?;
    let newest: Option<(i64, i64, Vec<u8>)> =
        newest.query_row([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).optional()?;
    let (first, n, mut text) = match newest {
        Some((first, n, text)) if first + n == seq && text.len() + folded.len() < ROOM => {
            (first, n, text)
        }
        Some(_) | None => (seq, 0, Vec::new()),
    };
    text.extend_from_slice(folded.as_bytes());
    text.push(END);
    db.prepare_cached("INSERT OR REPLACE INTO search (first, n, text) VALUES (?1, ?2, ?3)")?
        .execute((first, n + 1, text))?;
    Ok(())
}

/// Takes the description of a task away, without moving the others.
pub(super) fn forget(db: &Connection, seq: i64) -> Result<(), Error> {
    // What readers remember is no longer true.
    db.prepare_cached(
        "INSERT INTO counter VALUES ('forgotten', 1) ON CONFLICT DO UPDATE SET n = n + 1",
    )?
    .execute([])?;
    let mut around = db.prepare_cached(
        "SELECT first, n, text FROM search WHERE first <= ?1 ORDER BY first DESC LIMIT 1",
    )?;
    let found: Option<(i64, i64, Vec<u8>)> =
        around.query_row([seq], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).optional()?;
    let Some((first, n, text)) = found.filter(|(first, n, _)| first + n > seq) else {
        return Ok(());
    };
    let mut kept: Vec<&[u8]> = text.split_inclusive(|byte| *byte == END).collect();
    if let Some(entry) = kept.get_mut((seq - first) as usize) {
        *entry = &[GONE, END];
    }
    if kept.iter().all(|entry| *entry == [GONE, END]) {
        db.prepare_cached("DELETE FROM search WHERE first = ?1")?.execute([first])?;
    } else {
        db.prepare_cached("INSERT OR REPLACE INTO search (first, n, text) VALUES (?1, ?2, ?3)")?
            .execute((first, n, kept.concat()))?;
    }
    Ok(())
}

/// Adds what is missing at the end: everything, in a store from before there was a search.
pub(super) fn catch_up(db: &Connection) -> Result<(), Error> {
    let known = "SELECT coalesce((SELECT first + n FROM search ORDER BY first DESC LIMIT 1), 0)";
    let mut from: i64 = db.query_row(known, [], |row| row.get(0))?;
    loop {
        let mut missing = db.prepare_cached(&format!(
            "SELECT seq, description FROM task WHERE seq >= ?1 ORDER BY seq LIMIT {CHUNK}"
        ))?;
        let missing = missing.query_map([from], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let missing = missing.collect::<Result<Vec<(i64, String)>, _>>()?;
        let Some((last, _)) = missing.last() else { return Ok(()) };
        from = last + 1;
        for (seq, description) in &missing {
            append(db, *seq, description)?;
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The tables that matter here, with these descriptions in them.
    pub(in crate::store) fn index(descriptions: &[String]) -> Connection {
        let db = Connection::open_in_memory().unwrap();
        db.execute_batch(TABLES).unwrap();
        for (seq, description) in (1..).zip(descriptions) {
            append(&db, seq, description).unwrap();
        }
        db
    }

    pub(in crate::store) const TABLES: &str =
        "CREATE TABLE search (first INTEGER PRIMARY KEY, n INTEGER, text BLOB);
         CREATE TABLE task (seq INTEGER PRIMARY KEY, description TEXT);
         CREATE TABLE counter (name TEXT PRIMARY KEY, n INTEGER);";

    #[test]
    fn a_long_history_is_spread_over_many_pages_and_caught_up_with_in_one_go() {
        let texts: Vec<String> = (0..1000).map(|n| format!("look at number {n} again")).collect();
        let db = index(&texts);
        let blocks = |db: &Connection| -> Vec<(i64, i64, Vec<u8>)> {
            let mut blocks = db.prepare("SELECT first, n, text FROM search ORDER BY 1").unwrap();
            let blocks =
                blocks.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
            blocks.collect::<Result<_, _>>().unwrap()
        };
        let longest = blocks(&db).iter().map(|(_, _, text)| text.len()).max();
        assert!(blocks(&db).len() > 5 && longest <= Some(ROOM), "{longest:?}");

        let late = index(&[]);
        for (seq, text) in (1..).zip(&texts) {
            late.execute("INSERT INTO task VALUES (?1, ?2)", (seq, text)).unwrap();
        }
        catch_up(&late).unwrap();
        assert_eq!(blocks(&late), blocks(&db));
        for seq in 1..=1000 {
            forget(&late, seq).unwrap();
        }
        assert_eq!(blocks(&late), []);
    }
}
