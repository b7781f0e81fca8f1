//! The store by subject: handles that borrow it. Their methods are in the file of the subject.

use super::Store;

impl Store {
    pub fn tasks(&self) -> Tasks<'_> {
        Tasks { store: self }
    }

    pub fn slots(&self) -> Slots<'_> {
        Slots { store: self }
    }

    pub fn outbox(&self) -> Outbox<'_> {
        Outbox { store: self }
    }

    pub fn intents(&self) -> Intents<'_> {
        Intents { store: self }
    }

    pub fn sessions(&self) -> Sessions<'_> {
        Sessions { store: self }
    }

    pub fn transcripts(&self) -> Transcripts<'_> {
        Transcripts { store: self }
    }

    pub fn pages(&self) -> Pages<'_> {
        Pages { store: self }
    }

    pub fn overview(&self) -> Overview<'_> {
        Overview { store: self }
    }

    pub fn processes(&self) -> Processes<'_> {
        Processes { store: self }
    }

    pub fn instances(&self) -> Instances<'_> {
        Instances { store: self }
    }

    pub fn asks(&self) -> Asks<'_> {
        Asks { store: self }
    }

    pub fn history(&self) -> History<'_> {
        History { store: self }
    }

    pub fn integrity(&self) -> Integrity<'_> {
        Integrity { store: self }
    }
}

/// The changes of tasks, and look-ups of single ones and of the live ones.
#[derive(Clone, Copy)]
pub struct Tasks<'a> {
    pub(super) store: &'a Store,
}

/// Who may run, and who waits.
#[derive(Clone, Copy)]
pub struct Slots<'a> {
    pub(super) store: &'a Store,
}

/// Notices that are owed, and mailboxes.
#[derive(Clone, Copy)]
pub struct Outbox<'a> {
    pub(super) store: &'a Store,
}

/// Launches under way.
#[derive(Clone, Copy)]
pub struct Intents<'a> {
    pub(super) store: &'a Store,
}

/// The sessions of the embedded host.
#[derive(Clone, Copy)]
pub struct Sessions<'a> {
    pub(super) store: &'a Store,
}

/// What was said in sessions that hosts may forget.
#[derive(Clone, Copy)]
pub struct Transcripts<'a> {
    pub(super) store: &'a Store,
}

/// Pages of the history.
#[derive(Clone, Copy)]
pub struct Pages<'a> {
    pub(super) store: &'a Store,
}

/// Totals and groups, and the state that a stream begins with.
#[derive(Clone, Copy)]
pub struct Overview<'a> {
    pub(super) store: &'a Store,
}

/// Commands that were started.
#[derive(Clone, Copy)]
pub struct Processes<'a> {
    pub(super) store: &'a Store,
}

/// Servers that were added, and where parents are.
#[derive(Clone, Copy)]
pub struct Instances<'a> {
    pub(super) store: &'a Store,
}

/// What children asked for.
#[derive(Clone, Copy)]
pub struct Asks<'a> {
    pub(super) store: &'a Store,
}

/// How far the history goes, and what of it leaves the store.
#[derive(Clone, Copy)]
pub struct History<'a> {
    pub(super) store: &'a Store,
}

/// Whether the store can be read.
#[derive(Clone, Copy)]
pub struct Integrity<'a> {
    pub(super) store: &'a Store,
}
