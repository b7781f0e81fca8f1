//! Tasks as JSON. That of ended ones is written with their end and copied from there; a part of it
//! is remembered until the next change.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{PoisonError, RwLock};

use rusqlite::Connection;

use super::state::State;
use super::{Error, pages};
use crate::task::view::TaskView;

const MOST_BYTES: usize = 4 << 20;
/// A few long results would push out all others.
const LARGEST: usize = 64 << 10;

#[derive(Default)]
pub(super) struct Views(RwLock<Kept>);

#[derive(Default)]
struct Kept {
    state: State,
    by_task: HashMap<i64, Box<[u8]>, BuildHasherDefault<Number>>,
    bytes: usize,
}

/// The numbers of tasks are our own: nobody can choose them to be in each other's way.
#[derive(Default)]
struct Number(u64);

impl Hasher for Number {
    fn write_i64(&mut self, number: i64) {
        self.0 = number.cast_unsigned().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_i64((self.0 << 8 | u64::from(*byte)).cast_signed());
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Views {
    /// Appends these tasks, with commas between them. `None`, and nothing, if it would take a
    /// connection and there is none.
    pub(super) fn append(
        &self,
        db: Option<&Connection>,
        state: State,
        seqs: &[i64],
        to: &mut Vec<u8>,
    ) -> Result<Option<()>, Error> {
        let begun = to.len();
        let kept = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let known = |seq| kept.by_task.get(seq).filter(|_| kept.state == state);
        let known: Vec<Option<_>> = seqs.iter().map(known).collect();
        // A little more: somebody will write something behind it.
        to.reserve(known.iter().flatten().map(|json| json.len() + 1).sum::<usize>() + 128);
        let mut read = Vec::new();
        for (seq, known) in seqs.iter().zip(known) {
            if to.len() > begun {
                to.push(b',');
            }
            if let Some(json) = known {
                to.extend_from_slice(json);
                continue;
            }
            let Some(db) = db else {
                to.truncate(begun);
                return Ok(None);
            };
            let mut ready = db.prepare_cached("SELECT json FROM view WHERE task = ?1")?;
            if let Some(row) = ready.query([seq])?.next()? {
                let json = row.get_ref(0)?.as_bytes().unwrap_or_default();
                to.extend_from_slice(json);
                read.push((*seq, json.into()));
                continue;
            }
            match pages::by_seq(db, *seq)? {
                Some(task) => to.extend_from_slice(TaskView::brief(&task).to_json().as_bytes()),
                // Pruned since its number was read: the comma before it goes, too.
                None => to.truncate(to.len() - usize::from(to.len() > begun)),
            }
        }
        drop(kept);
        if !read.is_empty() {
            self.remember(state, read);
        }
        Ok(Some(()))
    }

    fn remember(&self, state: State, read: Vec<(i64, Box<[u8]>)>) {
        let mut kept = self.0.write().unwrap_or_else(PoisonError::into_inner);
        for (seq, json) in read.into_iter().filter(|(_, json)| json.len() <= LARGEST) {
            if state > kept.state || kept.bytes + json.len() > MOST_BYTES {
                *kept = Kept { state: state.max(kept.state), ..Kept::default() };
            }
            if state == kept.state {
                kept.bytes += json.len();
                if let Some(same) = kept.by_task.insert(seq, json) {
                    kept.bytes -= same.len();
                }
            }
        }
    }
}
