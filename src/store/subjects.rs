//! The store's interface, by subject: one borrowed handle for each, so that a caller sees the methods of one subject
//! and not all of them. They are in the file of the subject.

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

    pub fn alerts(&self) -> Alerts<'_> {
        Alerts { store: self }
    }

    pub fn asks(&self) -> Asks<'_> {
        Asks { store: self }
    }

    pub fn calls(&self) -> Calls<'_> {
        Calls { store: self }
    }

    pub fn further(&self) -> Further<'_> {
        Further { store: self }
    }

    pub fn history(&self) -> History<'_> {
        History { store: self }
    }

    pub fn keyed_changes(&self) -> KeyedChanges<'_> {
        KeyedChanges { store: self }
    }

    pub fn integrity(&self) -> Integrity<'_> {
        Integrity { store: self }
    }
}

/// Writes of the task lifecycle, and look-ups of single tasks and of the live ones.
#[derive(Clone, Copy)]
pub struct Tasks<'a> {
    pub(super) store: &'a Store,
}

/// Admission control: which tasks may run, and which wait.
#[derive(Clone, Copy)]
pub struct Slots<'a> {
    pub(super) store: &'a Store,
}

/// The outbox of notices, and mailboxes.
#[derive(Clone, Copy)]
pub struct Outbox<'a> {
    pub(super) store: &'a Store,
}

/// Write-ahead records of launches.
#[derive(Clone, Copy)]
pub struct Intents<'a> {
    pub(super) store: &'a Store,
}

/// The sessions of the embedded host.
#[derive(Clone, Copy)]
pub struct Sessions<'a> {
    pub(super) store: &'a Store,
}

/// The archive of transcripts that hosts may forget.
#[derive(Clone, Copy)]
pub struct Transcripts<'a> {
    pub(super) store: &'a Store,
}

/// Pages of the history.
#[derive(Clone, Copy)]
pub struct Pages<'a> {
    pub(super) store: &'a Store,
}

/// Totals and groups, and the snapshot that an event stream begins with.
#[derive(Clone, Copy)]
pub struct Overview<'a> {
    pub(super) store: &'a Store,
}

/// Records of the processes of agents' commands.
#[derive(Clone, Copy)]
pub struct Processes<'a> {
    pub(super) store: &'a Store,
}

/// The registry of host servers, and which of them parents are on.
#[derive(Clone, Copy)]
pub struct Instances<'a> {
    pub(super) store: &'a Store,
}

/// The outbox of notifications for people.
#[derive(Clone, Copy)]
pub struct Alerts<'a> {
    pub(super) store: &'a Store,
}

/// First-seen times of permission requests and questions, and their answers.
#[derive(Clone, Copy)]
pub struct Asks<'a> {
    pub(super) store: &'a Store,
}

/// Tool calls that wait while their callers do something else.
#[derive(Clone, Copy)]
pub struct Calls<'a> {
    pub(super) store: &'a Store,
}

/// What is said to runs besides their prompts.
#[derive(Clone, Copy)]
pub struct Further<'a> {
    pub(super) store: &'a Store,
}

/// What calls have changed so far, by their idempotency keys.
#[derive(Clone, Copy)]
pub struct KeyedChanges<'a> {
    pub(super) store: &'a Store,
}

/// High-water marks of the history, and its pruning.
#[derive(Clone, Copy)]
pub struct History<'a> {
    pub(super) store: &'a Store,
}

/// Damage of the file, and quarantine of rows.
#[derive(Clone, Copy)]
pub struct Integrity<'a> {
    pub(super) store: &'a Store,
}
