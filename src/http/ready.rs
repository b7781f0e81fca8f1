//! Answers that were given and stay true until the next commit: asking again is a copy.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, PoisonError, RwLock};

use axum::body::Bytes;

/// Few are asked again and again; the rest need not be remembered.
const MOST: usize = 64;
const MOST_BYTES: usize = 8 << 20;

/// A handle; cloning it is cheap.
#[derive(Clone, Default)]
pub struct Ready(Arc<RwLock<Answers>>);

#[derive(Default)]
struct Answers {
    version: u64,
    by_question: HashMap<Arc<str>, Bytes>,
    /// The oldest first.
    questions: VecDeque<Arc<str>>,
    bytes: usize,
    /// What was asked lately, as fingerprints, the oldest first; also before the last commit.
    asked: VecDeque<u64>,
}

impl Ready {
    /// What was answered to the same question when the store was the same.
    pub(super) fn find(&self, question: &str, version: u64) -> Option<Bytes> {
        let answers = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let same = answers.version == version;
        same.then(|| answers.by_question.get(question).cloned()).flatten()
    }

    /// `version` is the store's from before the answer was read. A question that is asked for the
    /// first time may never be asked again: its answer is not kept.
    pub(super) fn keep(&self, question: &str, version: u64, answer: &Bytes) {
        let fingerprint = fingerprint(question);
        // Nobody waits for this: what is not kept now is kept another time.
        let Ok(mut answers) = self.0.try_write() else { return };
        if version > answers.version {
            let asked = std::mem::take(&mut answers.asked);
            *answers = Answers { version, asked, ..Answers::default() };
        }
        let known = answers.by_question.contains_key(question);
        if !answers.was_asked(fingerprint)
            || version < answers.version
            || answer.len() > MOST_BYTES
            || known
        {
            return;
        }
        // One by one: were all of them let go at once, their memory would be given back, too.
        while answers.questions.len() >= MOST || answers.bytes + answer.len() > MOST_BYTES {
            let oldest = answers.questions.pop_front();
            let Some(gone) = oldest.and_then(|oldest| answers.by_question.remove(&oldest)) else {
                break;
            };
            answers.bytes -= gone.len();
        }
        let question: Arc<str> = question.into();
        answers.bytes += answer.len();
        answers.by_question.insert(question.clone(), answer.clone());
        answers.questions.push_back(question);
    }
}

impl Answers {
    fn was_asked(&mut self, question: u64) -> bool {
        if self.asked.contains(&question) {
            return true;
        }
        if self.asked.len() >= MOST {
            self.asked.pop_front();
        }
        self.asked.push_back(question);
        false
    }
}

fn fingerprint(question: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    question.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep_twice(ready: &Ready, question: &str, version: u64, answer: &Bytes) {
        ready.keep(question, version, answer);
        ready.keep(question, version, answer);
    }

    #[test]
    fn what_is_asked_once_is_not_kept_and_what_was_asked_lately_is_at_once() {
        let ready = Ready::default();
        let answer = Bytes::from_static(b"answer");
        ready.keep("q", 1, &answer);
        assert_eq!(ready.find("q", 1), None);
        ready.keep("q", 2, &answer);
        assert_eq!(ready.find("q", 2), Some(answer));
    }

    #[test]
    fn an_answer_is_given_again_until_the_store_changes() {
        let ready = Ready::default();
        let (old, new) = (Bytes::from_static(b"old"), Bytes::from_static(b"new"));
        keep_twice(&ready, "q", 1, &old);
        assert_eq!(ready.find("q", 1), Some(old.clone()));
        assert_eq!((ready.find("other", 1), ready.find("q", 2)), (None, None));
        keep_twice(&ready, "q", 2, &new);
        // Somebody who read before the commit comes late.
        keep_twice(&ready, "q", 1, &old);
        assert_eq!((ready.find("q", 1), ready.find("q", 2)), (None, Some(new)));
    }

    #[test]
    fn what_is_remembered_stays_small() {
        let ready = Ready::default();
        let large = Bytes::from(vec![0; MOST_BYTES / 3]);
        for n in 0..10 {
            keep_twice(&ready, &n.to_string(), 1, &large);
        }
        let kept = || (0..10).filter(|n| ready.find(&n.to_string(), 1).is_some()).count();
        assert!((1..=3).contains(&kept()), "{}", kept());
        keep_twice(&ready, "too large", 1, &Bytes::from(vec![0; MOST_BYTES + 1]));
        assert_eq!(ready.find("too large", 1), None);
    }
}
