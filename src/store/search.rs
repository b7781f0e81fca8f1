//! Substring search in descriptions, by a linear scan: they are stored a second time, case-folded, packed into blocks
//! of a few pages of the file each, and scanned block by block with a vectorised search (`memmem`).
//!
//! A scan and not an index of trigrams (FTS5): that finds no texts of one or two letters, and for an exact total it
//! would visit every match, too, in many more pages.
//!
//! A block is the concatenated descriptions of consecutive tasks, each with a terminator that is no UTF-8, so the
//! number of a match is the first task's plus the terminators before it. Removing one leaves a tombstone, so that
//! the others keep their numbers. Everything here is derived from `task` and rebuilt when it is missing.

use memchr::memchr_iter;
use memchr::memmem::Finder;

use super::Error;
use super::filter::Direction;
use super::sql::Connection;

/// The terminator of every description. UTF-8 has no such byte, so no text matches across it.
const END: u8 = 0xff;
/// The tombstone of a description that was pruned. No such byte in UTF-8 either, so no text matches it.
const GONE: u8 = 0xfe;

/// The most that fits into a page of the file. The newest block is no longer than that, because every launch
/// rewrites it.
const ROOM: usize = 3900;

/// The newest blocks are merged when there are this many of one page. Most of a long scan is reading, and a row's
/// overflow pages are read without a place in SQLite's page cache, in two thirds of the time; longer blocks would
/// gain little more, and pruning rewrites a whole block for every task.
const MERGED: usize = 4;

/// Batch size: how many tasks are indexed at a time, to bound the memory.
const CHUNK: usize = 10_000;

/// Case folding, letter by letter: context never counts, or a part of a text would be folded differently from
/// the whole. That is why `str::to_lowercase` will not do, which turns a final Σ into ς.
fn fold(text: &str) -> String {
    if text.is_ascii() {
        return text.to_ascii_lowercase();
    }
    let small = text.chars().flat_map(char::to_lowercase);
    small.map(|letter| if letter == 'ς' { 'σ' } else { letter }).collect()
}

/// Calls `visit` with every block, in launch order or against it.
pub(super) fn scan(
    db: &Connection,
    text: &str,
    direction: Direction,
    mut visit: impl FnMut(Block<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let text = fold(text);
    let finder = Finder::new(&text);
    let mut blocks = db.prepare(match direction {
        Direction::Ascending => "SELECT first, text FROM search ORDER BY first",
        Direction::Descending => "SELECT first, text FROM search ORDER BY first DESC",
    })?;
    let mut blocks = blocks.query(())?;
    while let Some(row) = blocks.next()? {
        let (first, text) = (row.get(0)?, row.get::<&[u8]>(1).unwrap_or_default());
        visit(Block { first, text, finder: &finder, direction })?;
    }
    Ok(())
}

/// A block of descriptions to be searched. A match never spans two of them, because of the terminator.
pub(super) struct Block<'a> {
    /// The number of its first task.
    first: i64,
    text: &'a [u8],
    finder: &'a Finder<'a>,
    direction: Direction,
}

impl Block<'_> {
    /// How many descriptions match.
    pub(super) fn count(&self) -> u64 {
        self.matches().count() as u64
    }

    /// The numbers of the tasks whose descriptions match.
    pub(super) fn tasks(&self) -> Vec<i64> {
        let (mut seq, mut from) = (self.first, 0);
        let number = |at| {
            seq += memchr_iter(END, &self.text[from..at]).count() as i64;
            from = at;
            seq
        };
        let mut tasks: Vec<i64> = self.matches().map(number).collect();
        if self.direction == Direction::Descending {
            tasks.reverse();
        }
        tasks
    }

    /// The position of the first match in every description that has one. One pass of the vectorised search over the
    /// whole block, because setting it up has a price: to search each description by itself takes about as long
    /// where all match, and four times as long where few do.
    fn matches(&self) -> impl Iterator<Item = usize> {
        let mut next = 0;
        self.finder.find_iter(self.text).filter(move |at| {
            let is_first = *at >= next;
            if is_first {
                next = end_after(self.text, *at) + 1;
            }
            is_first
        })
    }
}

/// Where the description ends that this position is in. The end is near, so a SWAR search (16 bytes as one number) is
/// faster than `memchr`, which prepares for long texts; all bits of `END` are set, so in the complement the terminator
/// is the first zero byte.
fn end_after(text: &[u8], from: usize) -> usize {
    const LOW: u128 = u128::MAX / 0xff;
    const HIGH: u128 = LOW << 7;
    let (chunks, rest) = text[from..].as_chunks::<16>();
    for (n, chunk) in chunks.iter().enumerate() {
        let complement = !u128::from_le_bytes(*chunk);
        // The classic zero-byte test. Borrows can set bits above the first zero byte only, so the lowest set
        // bit is in the first one.
        let zeros = complement.wrapping_sub(LOW) & !complement & HIGH;
        if zeros != 0 {
            return from + n * 16 + (zeros.trailing_zeros() / 8) as usize;
        }
    }
    let at = text.len() - rest.len();
    rest.iter().position(|byte| *byte == END).map_or(text.len(), |end| at + end)
}

/// Adds the description of the newest task: to the last block, or to a new one when that is full or a number is
/// missing in between.
pub(super) fn append(db: &Connection, seq: i64, description: &str) -> Result<(), Error> {
    let folded = fold(description);
    let newest: Option<(i64, i64, Vec<u8>)> =
        db.query_opt("SELECT first, n, text FROM search ORDER BY first DESC LIMIT 1", (), |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?;
    let (first, n, mut text) = match newest {
        Some((first, n, text)) if first + n == seq && text.len() + folded.len() < ROOM => {
            (first, n, text)
        }
        Some(_) | None => {
            merge(db)?;
            (seq, 0, Vec::new())
        }
    };
    text.extend_from_slice(folded.as_bytes());
    text.push(END);
    db.execute(
        "INSERT OR REPLACE INTO search (first, n, text) VALUES (?1, ?2, ?3)",
        (first, n + 1, text),
    )?;
    Ok(())
}

/// Makes one block of the newest ones, if they are of one page each and no number is missing between them.
fn merge(db: &Connection) -> Result<(), Error> {
    let mut blocks: Vec<(i64, i64, Vec<u8>)> = db.query_all(
        &format!("SELECT first, n, text FROM search ORDER BY first DESC LIMIT {MERGED}"),
        (),
        |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
    )?;
    blocks.reverse();
    let follow = |pair: &[(i64, i64, Vec<u8>)]| pair[0].0 + pair[0].1 == pair[1].0;
    let are_small = blocks.iter().all(|(_, _, text)| text.len() <= ROOM);
    if blocks.len() < MERGED || !are_small || !blocks.windows(2).all(follow) {
        return Ok(());
    }
    let first = blocks[0].0;
    let n: i64 = blocks.iter().map(|(_, n, _)| n).sum();
    let text: Vec<u8> = blocks.into_iter().flat_map(|(_, _, text)| text).collect();
    db.execute("DELETE FROM search WHERE first >= ?1", [first])?;
    db.execute("INSERT INTO search (first, n, text) VALUES (?1, ?2, ?3)", (first, n, text))?;
    Ok(())
}

/// Removes the description of a task. It leaves a tombstone, so that the numbers of the others stay right; a block of
/// tombstones alone is deleted.
pub(super) fn forget(db: &Connection, seq: i64) -> Result<(), Error> {
    let found: Option<(i64, i64, Vec<u8>)> = db.query_opt(
        "SELECT first, n, text FROM search WHERE first <= ?1 ORDER BY first DESC LIMIT 1",
        [seq],
        |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
    )?;
    let Some((first, n, text)) = found.filter(|(first, n, _)| first + n > seq) else {
        return Ok(());
    };
    let mut kept: Vec<&[u8]> = text.split_inclusive(|byte| *byte == END).collect();
    if let Some(entry) = kept.get_mut((seq - first) as usize) {
        *entry = &[GONE, END];
    }
    if kept.iter().all(|entry| *entry == [GONE, END]) {
        db.execute("DELETE FROM search WHERE first = ?1", [first])?;
    } else {
        db.execute(
            "INSERT OR REPLACE INTO search (first, n, text) VALUES (?1, ?2, ?3)",
            (first, n, kept.concat()),
        )?;
    }
    Ok(())
}

/// Indexes what is missing at the end: everything, in a store from before there was a search, or after a repair.
pub(super) fn catch_up(db: &Connection) -> Result<(), Error> {
    let known = "SELECT coalesce((SELECT first + n FROM search ORDER BY first DESC LIMIT 1), 0)";
    let mut from: i64 = db.query_one(known, (), |row| row.get(0))?;
    loop {
        let missing: Vec<(i64, String)> = db.query_all(
            &format!(
                "SELECT seq, description FROM task WHERE seq >= ?1 ORDER BY seq LIMIT {CHUNK}"
            ),
            [from],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )?;
        let Some((last, _)) = missing.last() else { return Ok(()) };
        from = last + 1;
        for (seq, description) in &missing {
            append(db, *seq, description)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The tables that matter here, with these descriptions in them.
    fn index(descriptions: &[String]) -> Connection {
        let db = Connection::from(rusqlite::Connection::open_in_memory().unwrap());
        db.batch(
            "CREATE TABLE search (first INTEGER PRIMARY KEY, n INTEGER, text BLOB);
             CREATE TABLE task (seq INTEGER PRIMARY KEY, description TEXT);",
        )
        .unwrap();
        for (seq, description) in (1..).zip(descriptions) {
            append(&db, seq, description).unwrap();
        }
        db
    }

    fn all(db: &Connection, text: &str, direction: Direction) -> Vec<i64> {
        let mut seqs = Vec::new();
        scan(db, text, direction, |block| {
            assert_eq!(block.count(), block.tasks().len() as u64);
            seqs.extend(block.tasks());
            Ok(())
        })
        .unwrap();
        seqs
    }

    #[test]
    fn a_search_ignores_case_also_for_short_and_non_ascii_texts() {
        let texts = ["Find the Auth code", "ÜBER Straßen", "ΟΔΟΣ", "日本語 テスト", "", "a\nb%_"];
        let db = index(&texts.map(str::to_owned));
        let check = |text: &str, expected: &[i64]| {
            assert_eq!(all(&db, text, Direction::Ascending), expected, "{text}");
        };
        check("AUTH", &[1]);
        check("h", &[1]);
        check("e ", &[1]);
        check("über", &[2]);
        check("ß", &[2]);
        check("οδος", &[3]);
        check("οδοσ", &[3]);
        check("本", &[4]);
        check("a", &[1, 2, 6]);
        check("a\nb%_", &[6]);
        check("%", &[6]);
        check("nowhere", &[]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn the_index_finds_what_a_comparison_of_every_description_finds(
            texts in prop::collection::vec("[aAbBéÉ ]{0,12}", 0..80),
            gone in prop::collection::vec(1..80_i64, 0..20),
            text in "[aAbBéÉ]{1,3}",
        ) {
            // Long enough for several blocks.
            let long = |text: &String| format!("{text}{}{text}", "x".repeat(300));
            let texts: Vec<String> = texts.iter().map(long).collect();
            let db = index(&texts);
            for seq in gone.iter().filter(|seq| **seq <= texts.len() as i64) {
                forget(&db, *seq).unwrap();
            }
            let kept = (1..).zip(&texts).filter(|(seq, _)| !gone.contains(seq));
            let matching = kept.filter(|(_, other)| fold(other).contains(&fold(&text)));
            let mut expected: Vec<i64> = matching.map(|(seq, _)| seq).collect();
            prop_assert_eq!(&all(&db, &text, Direction::Ascending), &expected);
            expected.reverse();
            prop_assert_eq!(&all(&db, &text, Direction::Descending), &expected);
        }
    }

    #[test]
    fn the_index_of_a_long_history_has_many_pages_and_can_be_built_at_once() {
        let texts: Vec<String> = (0..1000).map(|n| format!("look at number {n} again")).collect();
        let db = index(&texts);
        let blocks = |db: &Connection| -> Vec<(i64, i64, Vec<u8>)> {
            let blocks = "SELECT first, n, text FROM search ORDER BY 1";
            db.query_all(blocks, (), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap()
        };
        // What a launch rewrites stays within a page; behind it, pages are merged.
        let lengths: Vec<usize> = blocks(&db).iter().map(|(_, _, text)| text.len()).collect();
        let (newest, older) = lengths.split_last().unwrap();
        assert!(*newest <= ROOM && older[0] > (MERGED - 1) * ROOM, "{lengths:?}");
        assert_eq!(all(&db, "number", Direction::Ascending), (1..=1000).collect::<Vec<i64>>());

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
