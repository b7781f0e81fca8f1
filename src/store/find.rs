//! Finding tasks by a part of their description, in what `search` keeps. Within fixed bounds, the
//! descriptions and where words were found are remembered: all but the newest block, which grows;
//! the others stay as they are until a task is forgotten.
//!
//! Where a connection is optional, the answer is `None` if it cannot be given without one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, RwLock, TryLockError};

use memchr::memmem::Finder;
use memchr::{memchr, memchr_iter};
use rusqlite::{Connection, Row};

use super::pages::Direction;
use super::search::END;
use super::state::State;
use super::{Error, Store};

/// So much of the descriptions is remembered: those of some seven hundred thousand tasks. To read
/// them from the file takes five times as long as to go through them here.
const MOST_BYTES: usize = 28 << 20;
/// So many blocks are marked, in 6 MB: those of two million.
const MOST_MARKED: usize = 24 << 10;
const MARKS: usize = 2048;
/// So many words are remembered, and so many blocks with one of them in it.
const MOST_WORDS: usize = 64;
const MOST_PLACES: usize = 64 << 10;

#[derive(Default)]
pub(super) struct Known {
    blocks: RwLock<Blocks>,
    remembering: Mutex<()>,
    words: RwLock<Words>,
    latest: RwLock<Option<(u64, Moment)>>,
}

/// What a search needs to know of the store as it was at some time.
#[derive(Clone)]
pub(super) struct Moment {
    pub(super) state: State,
    /// With the number of its first task.
    newest: Option<(i64, Arc<Text>)>,
}

/// The oldest ones, all before `until`.
#[derive(Default)]
struct Blocks {
    forgotten: i64,
    until: i64,
    all: Vec<Block>,
    /// Of their texts.
    bytes: usize,
}

struct Block {
    /// The number of its first task.
    first: i64,
    marks: Marks,
    /// None behind one without.
    text: Option<Text>,
}

/// Says which threes of bytes are in a block, roughly: one without a mark is not in it.
struct Marks(Box<[u64; MARKS / 64]>);

struct Text {
    bytes: Box<[u8]>,
    ends: Box<[u32]>,
}

/// The latest at the end.
#[derive(Default)]
struct Words {
    all: VecDeque<(String, Arc<Found>)>,
    places: usize,
}

/// Where a word is in all blocks before `until`.
#[derive(Clone, Default)]
struct Found {
    forgotten: i64,
    until: i64,
    places: Vec<Place>,
    total: i64,
}

/// A block with the word in this many of its descriptions.
#[derive(Clone, Copy)]
struct Place {
    first: i64,
    n: i64,
}

/// One search, at one moment.
pub(super) struct Search<'a> {
    known: &'a Known,
    moment: &'a Moment,
    finder: Finder<'a>,
    /// In all blocks but the newest.
    found: Arc<Found>,
    in_newest: Option<Place>,
}

impl<'a> Search<'a> {
    /// `word` has its letters folded.
    pub(super) fn begin(
        db: Option<&Connection>,
        known: &'a Known,
        moment: &'a Moment,
        word: &'a str,
    ) -> Result<Option<Search<'a>>, Error> {
        let finder = Finder::new(word);
        let (mut found, mut in_newest) = (Arc::default(), None);
        if let Some((first, text)) = &moment.newest {
            let range = (moment.state.forgotten, *first);
            let Some(all) = known.find(db, word, &finder, range)? else { return Ok(None) };
            found = all;
            let n = text.count(&finder);
            in_newest = (n > 0).then_some(Place { first: *first, n });
        }
        Ok(Some(Search { known, moment, finder, found, in_newest }))
    }

    /// How many tasks have the word in their description.
    pub(super) fn total(&self) -> i64 {
        self.found.total + self.in_newest.map_or(0, |place| place.n)
    }

    /// Some of them, in this order of their launch.
    pub(super) fn page(
        &self,
        db: Option<&Connection>,
        direction: Direction,
        (limit, offset): (i64, i64),
    ) -> Result<Option<Vec<i64>>, Error> {
        let end = offset.saturating_add(limit).min(self.total());
        let (mut page, mut passed) = (Vec::new(), 0);
        let places = self.found.places.len() + usize::from(self.in_newest.is_some());
        for nth in 0..places {
            if passed >= end || offset >= end {
                break;
            }
            let nth = match direction {
                Direction::Ascending => nth,
                Direction::Descending => places - 1 - nth,
            };
            let Some(place) = self.found.places.get(nth).copied().or(self.in_newest) else { break };
            if passed + place.n > offset {
                let Some(mut there) = self.tasks(db, place)? else { return Ok(None) };
                if direction == Direction::Descending {
                    there.reverse();
                }
                let on_page = (passed..).zip(there).filter(|(nth, _)| (offset..end).contains(nth));
                page.extend(on_page.map(|(_, seq)| seq));
            }
            passed += place.n;
        }
        Ok(Some(page))
    }

    /// Those of one block.
    fn tasks(&self, db: Option<&Connection>, place: Place) -> Result<Option<Vec<i64>>, Error> {
        let mut tasks = Vec::with_capacity(place.n as usize);
        let mut look = |text: &Text| {
            let seq = |nth| place.first + nth as i64;
            match place.n as usize == text.ends.len() {
                true => tasks.extend((0..text.ends.len()).map(seq)),
                false => {
                    each_match(&self.finder, &text.bytes, &text.ends, |nth| tasks.push(seq(nth)));
                }
            }
        };
        let blocks = self.known.blocks.read().unwrap_or_else(PoisonError::into_inner);
        let newest = self.moment.newest.as_ref().filter(|(first, _)| *first == place.first);
        let newest = newest.map(|(_, text)| &**text);
        if let Some(text) = newest.or(blocks.text(self.moment.state.forgotten, place.first)) {
            look(text);
        } else if let Some(db) = db {
            let mut block = db.prepare_cached("SELECT first, text FROM search WHERE first = ?1")?;
            if let Some(row) = block.query([place.first])?.next()? {
                look(&Text::read(row)?.1);
            }
        } else {
            return Ok(None);
        }
        Ok(Some(tasks))
    }
}

impl Moment {
    fn read(db: &Connection) -> Result<Moment, Error> {
        let state = State::read(db)?;
        let mut newest =
            db.prepare_cached("SELECT first, text FROM search ORDER BY first DESC LIMIT 1")?;
        let mut newest = newest.query([])?;
        let newest = newest.next()?.map(Text::read).transpose()?;
        Ok(Moment { state, newest: newest.map(|(first, text)| (first, Arc::new(text))) })
    }
}

impl Known {
    /// What the store is like, if that was seen since its last change.
    pub(super) fn recall(&self, store: &Store) -> Option<Moment> {
        let version = store.settled_version()?;
        let latest = self.latest.read().unwrap_or_else(PoisonError::into_inner);
        latest.as_ref().filter(|(seen, _)| *seen == version).map(|(_, moment)| moment.clone())
    }

    /// What it is like in the view of a reader who has not read anything yet.
    pub(super) fn see(&self, db: &Connection, store: &Store) -> Result<Moment, Error> {
        let before = store.settled_version();
        let moment = Moment::read(db)?;
        let after = store.settled_version();
        // If not, nobody knows of which version this view is.
        if let Some(version) = before.filter(|_| before == after) {
            let mut latest = self.latest.write().unwrap_or_else(PoisonError::into_inner);
            *latest = Some((version, moment.clone()));
        }
        Ok(moment)
    }

    /// Where the word is in all blocks before `until`.
    fn find(
        &self,
        db: Option<&Connection>,
        word: &str,
        finder: &Finder<'_>,
        (forgotten, until): (i64, i64),
    ) -> Result<Option<Arc<Found>>, Error> {
        let mut found = match self.found(word, forgotten) {
            Some(found) if found.until == until => return Ok(Some(found)),
            Some(found) if found.until < until => Found::clone(&found),
            // Or only by somebody who has seen more than this reader.
            Some(_) | None => Found { forgotten, ..Found::default() },
        };
        let mut blocks = self.blocks.read().unwrap_or_else(PoisonError::into_inner);
        let fits = blocks.forgotten == forgotten && (found.until..=until).contains(&blocks.until);
        let may_have_it = if fits { blocks.marked_for(word, found.until) } else { Vec::new() };
        let in_file = may_have_it.iter().any(|(_, block)| block.text.is_none());
        if db.is_none() && (in_file || !fits || blocks.until < until) {
            return Ok(None);
        }
        if fits {
            // Those that have to be read and lie side by side are read in one go.
            let go_on = |(one, a): &(usize, &Block), (next, b): &(usize, &Block)| {
                a.text.is_none() && b.text.is_none() && one + 1 == *next
            };
            for some in may_have_it.chunk_by(go_on) {
                let (first, last) = (some[0].1, some[some.len() - 1].1);
                match (&first.text, db) {
                    (Some(text), _) => found.add(first.first, text.count(finder)),
                    (None, Some(db)) => {
                        found.read(db, finder, (first.first, last.first + 1), |_, _| {})?;
                    }
                    (None, None) => return Ok(None),
                }
            }
            found.until = blocks.until;
        }
        if found.until < until {
            let Some(db) = db else { return Ok(None) };
            // One at a time: what several remember is there several times until all but one let go.
            let alone = match self.remembering.try_lock() {
                Ok(alone) => Some(alone),
                Err(TryLockError::Poisoned(alone)) => Some(alone.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            };
            if alone.is_some() && forgotten > blocks.forgotten {
                drop(blocks);
                // Before there are new ones.
                let mut outdated = self.blocks.write().unwrap_or_else(PoisonError::into_inner);
                *outdated = Blocks { forgotten, ..Blocks::default() };
                drop(outdated);
                blocks = self.blocks.read().unwrap_or_else(PoisonError::into_inner);
            }
            let mut read = Read::after(&blocks, &found, alone.is_some());
            let range = (found.until, until);
            found.read(db, finder, range, |first, text| read.add(first, text))?;
            found.until = until;
            drop(blocks);
            if !read.is_empty() {
                read.until = read.until.min(until);
                self.blocks.write().unwrap_or_else(PoisonError::into_inner).add(read);
            }
        }
        let found = Arc::new(found);
        let mut words = self.words.write().unwrap_or_else(PoisonError::into_inner);
        words.add(word, Arc::clone(&found));
        Ok(Some(found))
    }

    fn found(&self, word: &str, forgotten: i64) -> Option<Arc<Found>> {
        let words = self.words.read().unwrap_or_else(PoisonError::into_inner);
        let found = words.all.iter().find(|(other, _)| other == word).map(|(_, found)| found);
        found.filter(|found| found.forgotten == forgotten).cloned()
    }
}

impl Found {
    fn add(&mut self, first: i64, n: i64) {
        if n > 0 {
            self.places.push(Place { first, n });
            self.total += n;
        }
    }

    /// Goes through a part of the file.
    fn read(
        &mut self,
        db: &Connection,
        finder: &Finder<'_>,
        range: (i64, i64),
        mut visit: impl FnMut(i64, &[u8]),
    ) -> Result<(), Error> {
        let mut blocks = db.prepare_cached(
            "SELECT first, text FROM search WHERE first >= ?1 AND first < ?2 ORDER BY first",
        )?;
        let mut rows = blocks.query(range)?;
        while let Some(row) = rows.next()? {
            let (first, text) = (row.get(0)?, row.get_ref(1)?.as_bytes().unwrap_or_default());
            self.add(first, count(finder, text));
            visit(first, text);
        }
        Ok(())
    }
}

/// What can be remembered of what is read.
struct Read {
    forgotten: i64,
    from: i64,
    until: i64,
    blocks: Vec<Block>,
    /// In bytes of text, and in blocks.
    room: (usize, usize),
}

impl Read {
    fn after(known: &Blocks, found: &Found, alone: bool) -> Read {
        let (forgotten, from) = (found.forgotten, found.until);
        // Otherwise there would be a gap, or it is out of date.
        let room = match alone && (forgotten, from) == (known.forgotten, known.until) {
            true => {
                let all_have_text = known.all.last().is_none_or(|last| last.text.is_some());
                let bytes = if all_have_text { MOST_BYTES - known.bytes } else { 0 };
                (bytes, MOST_MARKED - known.all.len())
            }
            false => (0, 0),
        };
        Read { forgotten, from, until: i64::MAX, blocks: Vec::new(), room }
    }

    fn add(&mut self, first: i64, bytes: &[u8]) {
        if self.blocks.len() == self.room.1 {
            self.until = self.until.min(first);
            return;
        }
        let text = (self.room.0 > bytes.len()).then(|| Text::new(bytes));
        let text = text.filter(|text| text.size() <= self.room.0);
        self.room.0 = text.as_ref().map_or(0, |text| self.room.0 - text.size());
        self.blocks.push(Block { first, marks: Marks::new(bytes), text });
    }

    fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
}

impl Marks {
    fn new(text: &[u8]) -> Marks {
        let mut marks = Box::new([0; MARKS / 64]);
        for mark in text.windows(3).map(mark) {
            marks[mark / 64] |= 1 << (mark % 64);
        }
        Marks(marks)
    }

    fn may_have(&self, threes: &[usize]) -> bool {
        threes.iter().all(|mark| self.0[mark / 64] >> (mark % 64) & 1 == 1)
    }
}

/// Many threes share one.
fn mark(three: &[u8]) -> usize {
    let number = three.iter().fold(0_u32, |number, byte| number << 8 | u32::from(*byte));
    number.wrapping_mul(0x9e37_79b1) as usize >> (32 - MARKS.ilog2())
}

impl Blocks {
    fn text(&self, forgotten: i64, first: i64) -> Option<&Text> {
        let at = self.all.binary_search_by_key(&first, |block| block.first);
        at.ok().filter(|_| self.forgotten == forgotten).and_then(|at| self.all[at].text.as_ref())
    }

    /// Those that have to be looked at, with their places.
    fn marked_for(&self, word: &str, from: i64) -> Vec<(usize, &Block)> {
        let threes: Vec<usize> = word.as_bytes().windows(3).map(mark).collect();
        let begin = self.all.partition_point(|block| block.first < from);
        let all = self.all.iter().enumerate().skip(begin);
        all.filter(|(_, block)| block.marks.may_have(&threes)).collect()
    }

    fn add(&mut self, read: Read) {
        if (read.forgotten, read.from) == (self.forgotten, self.until) {
            let texts = read.blocks.iter().filter_map(|block| block.text.as_ref());
            self.bytes += texts.map(Text::size).sum::<usize>();
            self.until = read.until;
            self.all.extend(read.blocks);
        }
    }
}

impl Text {
    fn new(bytes: &[u8]) -> Text {
        let ends = memchr_iter(END, bytes).map(|end| end as u32).collect();
        Text { bytes: bytes.into(), ends }
    }

    /// With the number of its first task.
    fn read(row: &Row<'_>) -> Result<(i64, Text), Error> {
        Ok((row.get(0)?, Text::new(row.get_ref(1)?.as_bytes().unwrap_or_default())))
    }

    fn size(&self) -> usize {
        self.bytes.len() + size_of_val(&*self.ends) + size_of::<Block>()
    }

    fn count(&self, finder: &Finder<'_>) -> i64 {
        let mut n = 0;
        each_match(finder, &self.bytes, &self.ends, |_| n += 1);
        n
    }
}

impl Words {
    fn add(&mut self, word: &str, found: Arc<Found>) {
        let same = self.all.iter().position(|(other, _)| other == word);
        if let Some((_, old)) = same.and_then(|at| self.all.remove(at)) {
            self.places -= old.places.len();
        }
        self.places += found.places.len();
        self.all.push_back((word.to_owned(), found));
        while self.places > MOST_PLACES || self.all.len() > MOST_WORDS {
            let Some((_, old)) = self.all.pop_front() else { return };
            self.places -= old.places.len();
        }
    }
}

/// How many descriptions have the word in them, where it is not known where they end.
fn count(finder: &Finder<'_>, mut text: &[u8]) -> i64 {
    let mut n = 0;
    while let Some(found) = finder.find(text) {
        n += 1;
        let Some(end) = memchr(END, &text[found..]) else { break };
        text = &text[found + end + 1..];
    }
    n
}

/// Calls `visit` with the place of every description that has the word in it.
fn each_match(finder: &Finder<'_>, text: &[u8], ends: &[u32], mut visit: impl FnMut(usize)) {
    let (mut from, mut place) = (0, 0);
    while let Some(found) = finder.find(&text[from..]) {
        // Where it ends, without looking at every byte in between.
        while ends.get(place).is_some_and(|end| (*end as usize) < from + found) {
            place += 1;
        }
        let Some(end) = ends.get(place) else { return };
        visit(place);
        // Once is enough: on to the next description.
        from = *end as usize + 1;
        place += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::store::search::tests::{TABLES, index};
    use crate::store::search::{append, fold, forget};

    type Page = (Vec<i64>, i64);

    /// Whether or not the file may be looked into, it is the same.
    fn page(
        known: &Known,
        db: &Connection,
        word: &str,
        direction: Direction,
        window: (i64, i64),
    ) -> Page {
        let (moment, word) = (Moment::read(db).unwrap(), fold(word));
        let look = |db| -> Option<Page> {
            let search = Search::begin(db, known, &moment, &word).unwrap()?;
            Some((search.page(db, direction, window).unwrap()?, search.total()))
        };
        let (read, recalled) = (look(Some(db)).unwrap(), look(None));
        assert_eq!(recalled.as_ref().unwrap_or(&read), &read);
        read
    }

    fn all(known: &Known, db: &Connection, word: &str) -> Vec<i64> {
        page(known, db, word, Direction::Ascending, (i64::MAX, 0)).0
    }

    #[test]
    fn a_word_is_found_in_capitals_or_not_also_when_it_is_short_or_not_ascii() {
        let texts = ["Find the Auth code", "ÜBER Straßen", "ΟΔΟΣ", "日本語 テスト", "", "a\nb%_"];
        let db = index(&texts.map(str::to_owned));
        let check = |word: &str, expected: &[i64]| {
            assert_eq!(all(&Known::default(), &db, word), expected, "{word}");
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
        fn it_finds_what_a_look_at_every_description_finds_also_when_it_has_looked_before(
            texts in prop::collection::vec("[aAbBéÉ ]{0,12}", 0..60),
            later in prop::collection::vec("[aAbBéÉ ]{0,12}", 0..20),
            gone in prop::collection::vec(1..60_i64, 0..20),
            word in "[aAbBéÉ]{1,3}",
        ) {
            // Long enough for several blocks.
            let long = |text: &String| format!("{text}{}{text}", "x".repeat(300));
            let mut texts: Vec<String> = texts.iter().map(long).collect();
            let (db, known) = (index(&texts), Known::default());
            let mut none = Vec::new();
            check(&known, &db, &texts, &none, &word);
            for some in later.chunks(7) {
                for text in some.iter().map(long) {
                    append(&db, texts.len() as i64 + 1, &text).unwrap();
                    texts.push(text);
                }
                check(&known, &db, &texts, &none, &word);
            }
            for some in gone.chunks(7) {
                for seq in some.iter().filter(|seq| **seq <= texts.len() as i64) {
                    forget(&db, *seq).unwrap();
                    none.push(*seq);
                }
                check(&known, &db, &texts, &none, &word);
            }
        }
    }

    fn check(known: &Known, db: &Connection, texts: &[String], gone: &[i64], word: &str) {
        let matching = |text: &String| fold(text).contains(&fold(word));
        let numbered = (1..).zip(texts).filter(|(seq, _)| !gone.contains(seq));
        let mut expected: Vec<i64> =
            numbered.filter(|(_, text)| matching(text)).map(|(seq, _)| seq).collect();
        for direction in [Direction::Ascending, Direction::Descending] {
            for (limit, offset) in [(50, 0), (2, 1), (0, 0), (3, 1000), (i64::MAX, 2)] {
                let shown = expected.iter().skip(offset as usize).take(limit as usize);
                let shown: Vec<i64> = shown.copied().collect();
                let page = page(known, db, word, direction, (limit, offset));
                assert_eq!(page, (shown, expected.len() as i64));
            }
            expected.reverse();
        }
    }

    #[test]
    fn who_began_to_read_earlier_is_not_told_what_others_have_seen_since_then() {
        let directory = tempfile::tempdir().unwrap();
        let open = || Connection::open(directory.path().join("test.db")).unwrap();
        let (writer, early, late) = (open(), open(), open());
        writer.execute_batch(&format!("PRAGMA journal_mode = WAL; {TABLES}")).unwrap();
        let launch = |seqs: std::ops::RangeInclusive<i64>| {
            writer.execute_batch("BEGIN").unwrap();
            seqs.for_each(|seq| append(&writer, seq, &format!("task {seq}")).unwrap());
            writer.execute_batch("COMMIT").unwrap();
        };
        let total =
            |known: &Known, db: &Connection| page(known, db, "TASK", Direction::Descending, (1, 0));
        let known = Known::default();
        launch(1..=1000);
        early.execute_batch("BEGIN").unwrap();
        assert_eq!(total(&known, &early), (vec![1000], 1000));
        launch(1001..=3000);
        assert_eq!(total(&known, &late), (vec![3000], 3000));
        assert_eq!(total(&known, &early), (vec![1000], 1000));
        assert_eq!(total(&known, &late), (vec![3000], 3000));
        forget(&writer, 3000).unwrap();
        forget(&writer, 7).unwrap();
        assert_eq!(total(&known, &late), (vec![2999], 2998));
        assert_eq!(total(&known, &early), (vec![1000], 1000));
        assert_eq!(total(&Known::default(), &early), (vec![1000], 1000));
    }

    #[test]
    fn what_is_remembered_stays_small_and_the_rest_is_read() {
        let texts: Vec<String> =
            (0..310).map(|n| format!("task {n}{}", " ".repeat(99_999))).collect();
        let (db, known) = (index(&texts), Known::default());
        assert_eq!(all(&known, &db, "task 8 "), [9]);
        assert_eq!(all(&known, &db, "task 308"), [309]);
        let (few, few_known) = (index(&texts[..2]), Known::default());
        for n in 0..2 * MOST_WORDS {
            assert_eq!(
                all(&few_known, &few, &format!("{n} ")),
                all(&Known::default(), &few, &format!("{n} "))
            );
        }
        let (blocks, words) = (known.blocks.read().unwrap(), few_known.words.read().unwrap());
        let bytes: usize = blocks.all.iter().flat_map(|block| &block.text).map(Text::size).sum();
        assert!(blocks.bytes == bytes && (1..=MOST_BYTES).contains(&bytes), "{bytes}");
        let places: usize = words.all.iter().map(|(_, found)| found.places.len()).sum();
        assert!(words.places == places && words.all.len() <= MOST_WORDS, "{places}");
    }
}
