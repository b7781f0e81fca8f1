//! Ids in OpenCode's format, and a seeded random number generator.

const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// A prefix for the kind, 48 bits of milliseconds and a counter, 14 random letters.
pub(super) struct Ids {
    last: u64,
    random: Random,
}

impl Ids {
    pub(super) fn new() -> Ids {
        Ids { last: 0, random: Random::new(1) }
    }

    /// Newer ids sort later.
    pub(super) fn ascending(&mut self, kind: &str, now: i64) -> String {
        let number = self.number(now);
        self.id(kind, number)
    }

    /// Newer ids sort earlier: sessions.
    pub(super) fn descending(&mut self, kind: &str, now: i64) -> String {
        let number = !self.number(now);
        self.id(kind, number)
    }

    fn number(&mut self, now: i64) -> u64 {
        self.last = (now.unsigned_abs() * 4096 + 1).max(self.last + 1);
        self.last
    }

    fn id(&mut self, kind: &str, number: u64) -> String {
        let letter = |_| char::from(LETTERS[self.random.below(62)]);
        let rest: String = (0..14).map(letter).collect();
        format!("{kind}_{:012x}{rest}", number & 0xffff_ffff_ffff)
    }
}

/// SplitMix64: small, and random enough for tests.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(super) fn chance(&mut self, probability: f64) -> bool {
        self.below(1_000_000) < (probability * 1_000_000.0) as usize
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) as usize % bound
    }
}
