//! Id newtypes: their formats, and how one is minted from a tick and random bytes. Pure: tick and bytes come
//! from `clock.rs`.
//!
//! Ids of sessions and messages have OpenCode's format, because hosts expect later messages to have greater
//! ids: one with a smaller id than the message before it would come out in the wrong place.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A conversation on a host, ours or a parent's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(String);

/// A task's id is its child's session id (T1).
pub type TaskId = SessionId;

/// A message in a conversation. Ours are minted once, stored, and reused on every retry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MessageId(String);

/// Six letters and digits, unique in the store, never changed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ShortId(String);

/// Tasks that belong together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BatchId(String);

/// A row of the outbox; later notices have greater ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NoticeId(i64);

/// The notices that an answer carries. The caller sends it back as the acknowledgement that they have
/// arrived; until then they stay unread and are handed out again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Receipt(Vec<NoticeId>);

impl NoticeId {
    /// Before the first one.
    pub const NONE: NoticeId = NoticeId(0);
    /// After all of them.
    pub const LAST: NoticeId = NoticeId(i64::MAX);

    pub fn new(number: i64) -> NoticeId {
        NoticeId(number)
    }

    pub fn number(self) -> i64 {
        self.0
    }
}

impl Receipt {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn has(&self, notice: NoticeId) -> bool {
        self.0.contains(&notice)
    }

    pub fn notices(&self) -> &[NoticeId] {
        &self.0
    }

    pub fn add(&mut self, other: Receipt) {
        self.0.extend(other.0);
    }

    /// Removes the notices of `other`, which have been acknowledged.
    pub fn settle(&mut self, other: &Receipt) {
        self.0.retain(|notice| !other.has(*notice));
    }
}

impl FromIterator<NoticeId> for Receipt {
    fn from_iter<I: IntoIterator<Item = NoticeId>>(notices: I) -> Receipt {
        Receipt(notices.into_iter().collect())
    }
}

impl SessionId {
    pub fn new(text: impl Into<String>) -> SessionId {
        SessionId(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn mint(tick: u64, random: &[u8; 16]) -> SessionId {
        SessionId(format!("ses_{}", body(tick, random)))
    }
}

impl MessageId {
    pub fn new(text: impl Into<String>) -> MessageId {
        MessageId(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Sorts after every id minted with a smaller tick, as hosts expect of later messages.
    pub fn mint(tick: u64, random: &[u8; 16]) -> MessageId {
        MessageId(format!("msg_{}", body(tick, random)))
    }

    /// The id of the message's part number `n`. Derived instead of minted: a retry sends the same part ids
    /// without their being stored.
    pub fn part(&self, n: u8) -> String {
        // The length of the host's format: 25 characters of the message's id, and the number.
        let body = self.0.strip_prefix("msg_").unwrap_or(&self.0);
        let stem: String = body.chars().take(25).collect();
        format!("prt_{stem}{n}")
    }
}

impl ShortId {
    pub fn new(text: impl Into<String>) -> ShortId {
        ShortId(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Lower case only, and with a digit at the end: easy to say and to type, and never a word. Not unique
    /// by itself: a launch brings several, and the store takes the first that is free.
    pub fn mint(random: &[u8; 16]) -> ShortId {
        let mut text: String = random[..5].iter().map(|byte| letter(*byte, 36)).collect();
        text.push(letter(random[5], 10));
        ShortId(text)
    }
}

impl BatchId {
    pub fn new(text: impl Into<String>) -> BatchId {
        BatchId(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn mint(tick: u64, random: &[u8; 16]) -> BatchId {
        BatchId(format!("bat_{}", body(tick, random)))
    }
}

/// 26 characters, the format of OpenCode: 12 hex digits of the tick, 14 random ones in base 62.
fn body(tick: u64, random: &[u8; 16]) -> String {
    let suffix: String = random[..14].iter().map(|byte| letter(*byte, 62)).collect();
    format!("{:012x}{suffix}", tick & 0xffff_ffff_ffff)
}

/// The tick that an id was minted with, for [`go_on_after`](crate::clock::Clock::go_on_after). `None` for
/// ids of another format.
pub fn tick_of(id: &str, near: u64) -> Option<u64> {
    // An id has only the lowest 48 bits of its tick, which wrap around every two years. Of the ticks with
    // these bits the one nearest to now is meant: without that, an id from before a wrap would look newer
    // than all that follow it, and the ticks would jump two years ahead.
    const PERIOD: u64 = 1 << 48;
    let (_, body) = id.split_once('_')?;
    let low = u64::from_str_radix(body.get(..12)?, 16).ok()?;
    let this = near & !(PERIOD - 1) | low;
    let nearest = [this.wrapping_sub(PERIOD), this, this.wrapping_add(PERIOD)];
    nearest.into_iter().min_by_key(|tick| tick.abs_diff(near))
}

/// One of the first `of` characters of: ten digits, lower case, upper case.
fn letter(byte: u8, of: u8) -> char {
    match byte % of {
        digit @ 0..=9 => char::from(b'0' + digit),
        lower @ 10..=35 => char::from(b'a' + lower - 10),
        upper => char::from(b'A' + upper - 36),
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for ShortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for BatchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// FNV-1a hash of some texts. Spelled out here because it is stored and compared by later versions of this
/// program, and std's hasher may change; it does not protect against deliberate collisions.
pub fn fingerprint(texts: &[&str]) -> u32 {
    // A zero byte ends each text, so that `["ab", "c"]` and `["a", "bc"]` differ.
    let bytes = texts.iter().flat_map(|text| text.bytes().chain([0]));
    bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_the_hosts_format_and_sort_by_time() {
        let early = MessageId::mint(5, &[255; 16]);
        let late = MessageId::mint(6, &[0; 16]);
        assert_eq!(early.as_str(), "msg_00000000000577777777777777");
        assert!(early < late);
        let session = SessionId::mint(1 << 50, &[61; 16]);
        assert_eq!(session.as_str(), "ses_000000000000ZZZZZZZZZZZZZZ");
        assert_eq!(session.as_str().len(), "ses_".len() + 26);
    }

    #[test]
    fn parts_of_a_message_have_ids_of_their_own_in_order() {
        let message = MessageId::mint(7, &[10; 16]);
        assert_eq!(message.part(0), "prt_000000000007aaaaaaaaaaaaa0");
        assert_eq!(message.part(1), "prt_000000000007aaaaaaaaaaaaa1");
    }

    #[test]
    fn a_short_id_is_six_letters_and_digits() {
        assert_eq!(ShortId::mint(&[35; 16]).as_str(), "zzzzz5");
        assert_eq!(ShortId::mint(&[0; 16]).as_str(), "000000");
    }
}
