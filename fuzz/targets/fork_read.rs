//! Any text as a transcript: it is refused, or what comes of it keeps the rules. It never panics.

#![no_main]

#[path = "../../src/fork/mod.rs"]
#[allow(dead_code, unused_imports)]
mod fork;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(inherited) = fork::inherit(text) else { return };
    let counts = inherited.counts;
    assert!(counts.characters <= fork::MOST_CHARACTERS);
    if counts.kept > 0 {
        assert_eq!(counts.characters, inherited.context.chars().count());
    }
    assert_eq!(counts.messages, counts.compacted.unwrap_or(0) + counts.removed + counts.kept);
    assert_eq!(fork::inherit(text).ok(), Some(inherited), "stable");
});
