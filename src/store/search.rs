//! Finding tasks by a part of their description. The descriptions are kept a second time, their
//! letters folded, many to a page of the file: going through all of them then costs about as much
//! as if they were in memory, without being there.

use memchr::memmem::Finder;
use memchr::{memchr, memchr_iter};
use rusqlite::{Connection, OptionalExtension};

use super::Error;
use super::pages::Direction;

/// Stands behind every description. No text has this byte in it.
const END: u8 = 0xff;
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

/// A page of the tasks with the word in their description, and how many there are.
pub(super) fn page(
    db: &Connection,
    word: &str,
    direction: Direction,
    limit: i64,
    offset: i64,
) -> Result<(Vec<i64>, i64), Error> {
    let window = offset..offset.saturating_add(limit);
    let (mut page, mut total) = (Vec::new(), 0);
    let mut places = Vec::new();
    each_block(db, word, direction, |finder, first, text| {
        let before = total;
        total += count(finder, text);
        // Which ones they are is only of interest on this page.
        if total <= window.start || before >= window.end {
            return;
        }
        matches(finder, text, &mut places);
        if direction == Direction::Descending {
            places.reverse();
        }
        let on_page = (before..).zip(&places).filter(|(place, _)| window.contains(place));
        page.extend(on_page.map(|(_, place)| first + place));
    })?;
    Ok((page, total))
}

/// Calls `visit` for every task with the word in its description, in this order of their launch.
pub(super) fn each(
    db: &Connection,
    word: &str,
    direction: Direction,
    mut visit: impl FnMut(i64),
) -> Result<(), Error> {
    let mut places = Vec::new();
    each_block(db, word, direction, |finder, first, text| {
        matches(finder, text, &mut places);
        match direction {
            Direction::Ascending => places.iter().for_each(|place| visit(first + place)),
            Direction::Descending => places.iter().rev().for_each(|place| visit(first + place)),
        }
    })
}

/// Calls `visit` with the number of the first task of every block and their descriptions.
fn each_block(
    db: &Connection,
    word: &str,
    direction: Direction,
    mut visit: impl FnMut(&Finder<'_>, i64, &[u8]),
) -> Result<(), Error> {
    let word = fold(word);
    let finder = Finder::new(&word);
    let order = match direction {
        Direction::Ascending => "ASC",
        Direction::Descending => "DESC",
    };
    let mut blocks =
        db.prepare_cached(&format!("SELECT first, text FROM search ORDER BY first {order}"))?;
    let mut found = blocks.query([])?;
    while let Some(row) = found.next()? {
        visit(&finder, row.get(0)?, row.get_ref(1)?.as_bytes().unwrap_or_default());
    }
    Ok(())
}

/// How many descriptions have the word in them.
fn count(finder: &Finder<'_>, text: &[u8]) -> i64 {
    let (mut at, mut found) = (0, 0);
    while let Some(next) = finder.find(&text[at..]) {
        found += 1;
        let Some(end) = memchr(END, &text[at + next..]) else { break };
        at += next + end + 1;
    }
    found
}

/// The places of those descriptions that have the word in them.
fn matches(finder: &Finder<'_>, text: &[u8], places: &mut Vec<i64>) {
    places.clear();
    let (mut at, mut place) = (0, 0);
    while let Some(found) = finder.find(&text[at..]) {
        place += memchr_iter(END, &text[at..at + found]).count() as i64;
        places.push(place);
        // Once is enough: on to the next description.
        let Some(end) = memchr(END, &text[at + found..]) else { return };
        at += found + end + 1;
        place += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn index(descriptions: &[String]) -> Connection {
        let db = Connection::open_in_memory().unwrap();
        db.execute_batch(
            "CREATE TABLE search (first INTEGER PRIMARY KEY, n INTEGER, text BLOB);
             CREATE TABLE task (seq INTEGER PRIMARY KEY, description TEXT);",
        )
        .unwrap();
        for (seq, description) in (1..).zip(descriptions) {
            append(&db, seq, description).unwrap();
        }
        db
    }

    fn find(db: &Connection, word: &str, direction: Direction) -> Vec<i64> {
        let mut found = Vec::new();
        each(db, word, direction, |seq| found.push(seq)).unwrap();
        found
    }

    #[test]
    fn a_word_is_found_in_capitals_or_not_also_when_it_is_short_or_not_ascii() {
        let texts = ["Find the Auth code", "ÜBER Straßen", "ΟΔΟΣ", "日本語 テスト", "", "a\nb%_"];
        let db = index(&texts.map(str::to_owned));
        let check = |word: &str, expected: &[i64]| {
            assert_eq!(find(&db, word, Direction::Ascending), expected, "{word}");
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
        #[test]
        fn it_finds_what_a_look_at_every_description_finds(
            texts in prop::collection::vec("[aAbBéÉ ]{0,12}", 0..60),
            gone in prop::collection::vec(1..60_i64, 0..20),
            word in "[aAbBéÉ]{1,3}",
        ) {
            let db = index(&texts);
            for seq in &gone {
                forget(&db, *seq).unwrap();
            }
            let matching = |text: &String| fold(text).contains(&fold(&word));
            let mut expected: Vec<i64> = (1..).zip(&texts)
                .filter(|(seq, text)| matching(text) && !gone.contains(seq))
                .map(|(seq, _)| seq)
                .collect();
            prop_assert_eq!(find(&db, &word, Direction::Ascending), expected.clone());
            for direction in [Direction::Ascending, Direction::Descending] {
                for (limit, offset) in [(50, 0), (2, 1), (0, 0), (3, 1000), (i64::MAX, 2)] {
                    let all = find(&db, &word, direction);
                    let shown = all.iter().skip(offset as usize).take(limit as usize);
                    let shown: Vec<i64> = shown.copied().collect();
                    let page = page(&db, &word, direction, limit, offset).unwrap();
                    prop_assert_eq!(page, (shown, all.len() as i64));
                }
            }
            expected.reverse();
            prop_assert_eq!(find(&db, &word, Direction::Descending), expected);
        }
    }

    #[test]
    fn a_long_history_is_spread_over_many_pages_and_caught_up_with_in_one_go() {
        let texts: Vec<String> = (0..1000).map(|n| format!("look at number {n} again")).collect();
        let db = index(&texts);
        let blocks = |db: &Connection| -> i64 {
            db.query_row("SELECT count(*) FROM search", [], |row| row.get(0)).unwrap()
        };
        let longest: i64 =
            db.query_row("SELECT max(length(text)) FROM search", [], |row| row.get(0)).unwrap();
        assert!(blocks(&db) > 5 && longest <= ROOM as i64, "{} of {longest}", blocks(&db));
        assert_eq!(find(&db, "NUMBER 999", Direction::Descending), [1000]);

        let late = index(&[]);
        for (seq, text) in (1..).zip(&texts) {
            late.execute("INSERT INTO task VALUES (?1, ?2)", (seq, text)).unwrap();
        }
        catch_up(&late).unwrap();
        assert_eq!(blocks(&late), blocks(&db));
        assert_eq!(find(&late, "9", Direction::Ascending), find(&db, "9", Direction::Ascending));
        for seq in 1..=1000 {
            forget(&late, seq).unwrap();
        }
        assert_eq!(blocks(&late), 0);
    }
}
