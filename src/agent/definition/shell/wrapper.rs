//! Wrappers: commands that run another command (`sudo -n git push` is a `git push`), and commands that
//! run something which cannot be told from their words (`eval`, `source`, `sh -c`). A wrapper with an
//! option that is not in the table is uncertain: it might take the next word as its value.

use super::Word;

/// What a command actually runs.
pub(super) enum Inner {
    /// Itself: it is no wrapper.
    Same,
    /// The command after it. `changes_nothing` if that does the same as it would do alone.
    Command { words: Vec<Word>, changes_nothing: bool },
    /// Something that cannot be told from its words.
    Uncertain,
}

/// A command that runs the words after its own.
struct Wrapper {
    name: &'static str,
    /// Options without a value, separated by spaces.
    options: &'static str,
    /// Options that take the next word as their value.
    valued: &'static str,
    /// How many operands of its own come before the command (`timeout 5 …`).
    operands: usize,
    takes_assignments: bool,
    /// It appends words to the command that are not written here (`xargs`).
    adds_words: bool,
    /// Without options, the command does the same as it would do alone.
    changes_nothing: bool,
}

const PLAIN: Wrapper = Wrapper {
    name: "",
    options: "",
    valued: "",
    operands: 0,
    takes_assignments: false,
    adds_words: false,
    changes_nothing: false,
};

const WRAPPERS: [Wrapper; 13] = [
    Wrapper { name: "builtin", changes_nothing: true, ..PLAIN },
    Wrapper { name: "busybox", ..PLAIN },
    Wrapper { name: "command", options: "-p", changes_nothing: true, ..PLAIN },
    Wrapper { name: "doas", options: "-n", ..PLAIN },
    Wrapper {
        name: "env",
        options: "- -i --ignore-environment",
        valued: "-u --unset",
        takes_assignments: true,
        ..PLAIN
    },
    Wrapper { name: "exec", options: "-c -l", valued: "-a", changes_nothing: true, ..PLAIN },
    Wrapper { name: "nice", valued: "-n", ..PLAIN },
    Wrapper { name: "nohup", changes_nothing: true, ..PLAIN },
    Wrapper { name: "setsid", options: "-w", ..PLAIN },
    Wrapper {
        name: "sudo",
        options: "-n -E -H -S -b -k",
        valued: "-u -g",
        takes_assignments: true,
        ..PLAIN
    },
    Wrapper { name: "time", options: "-p", changes_nothing: true, ..PLAIN },
    Wrapper { name: "timeout", options: "--foreground", valued: "-k -s", operands: 1, ..PLAIN },
    Wrapper {
        name: "xargs",
        options: "-0 -r -t -x",
        valued: "-I -L -P -a -d -n -s",
        adds_words: true,
        ..PLAIN
    },
];

/// Built-ins that run their arguments as code, run files or standard input, or change what the names of
/// commands mean.
const EVALUATING: &[&str] = &[
    ".",
    "alias",
    "bind",
    "compgen",
    "complete",
    "enable",
    "eval",
    "fc",
    "hash",
    "let",
    "mapfile",
    "readarray",
    "shopt",
    "source",
    "trap",
];

/// Built-ins that evaluate array subscripts in their arguments, which can run commands:
/// `test -v 'a[$(id)]'`.
const SUBSCRIPTING: &[&str] = &[
    "[", "declare", "export", "local", "printf", "read", "readonly", "test", "typeset", "unset",
    "wait",
];

/// Shells. With a script file they are commands like any other; with `-c` or standard input they run
/// unknown text.
const SHELLS: &[&str] = &["ash", "bash", "dash", "fish", "ksh", "mksh", "sh", "zsh"];

/// Unwraps one level.
pub(super) fn unwrap(words: &[Word]) -> Inner {
    let Some((name, arguments)) = words.split_first() else { return Inner::Same };
    // The name depends on files (a glob), or is an option: not a command we understand.
    let Some(typed) = name.literal().filter(|name| !name.starts_with('-')) else {
        return Inner::Uncertain;
    };
    let name = base(typed);
    if EVALUATING.contains(&name) {
        return Inner::Uncertain;
    }
    if SUBSCRIPTING.contains(&name) && arguments.iter().any(may_run_commands) {
        return Inner::Uncertain;
    }
    // `sh script.sh` runs a file, `sh -c …` and a bare `sh` run text.
    if SHELLS.contains(&name) {
        let script = arguments.first().and_then(Word::literal);
        return match script.is_some_and(|script| !script.starts_with(['-', '+', '<'])) {
            true => Inner::Same,
            false => Inner::Uncertain,
        };
    }
    // `command -v git` only prints a path.
    if name == "command" && matches!(arguments.first().and_then(Word::literal), Some("-v" | "-V")) {
        return Inner::Same;
    }
    match WRAPPERS.iter().find(|wrapper| wrapper.name == name) {
        Some(wrapper) => wrapper.unwrap(arguments, typed == name),
        None => Inner::Same,
    }
}

/// The command without the path of its program: `/bin/rm x` as `rm x`.
pub(super) fn without_path(words: &[Word]) -> Option<Vec<Word>> {
    let (name, arguments) = words.split_first()?;
    let name = name.literal().filter(|name| base(name) != *name)?;
    let mut words = vec![Word::Literal(base(name).to_owned())];
    words.extend_from_slice(arguments);
    Some(words)
}

impl Wrapper {
    fn unwrap(&self, arguments: &[Word], is_bare: bool) -> Inner {
        let lists =
            |options: &str, word: &str| options.split_whitespace().any(|option| option == word);
        let mut rest = arguments;
        let mut is_optioned = false;
        while let Some((first, behind)) = rest.split_first() {
            // An unknown word could be an option, or the command itself.
            let Some(word) = first.literal() else { return Inner::Uncertain };
            if lists(self.options, word) {
                rest = behind;
            } else if lists(self.valued, word) {
                rest = behind.get(1..).unwrap_or_default();
            } else if word.starts_with('-') {
                return Inner::Uncertain;
            } else if self.takes_assignments && word.contains('=') {
                rest = behind;
            } else {
                break;
            }
            is_optioned = true;
        }
        let Some(rest) = rest.get(self.operands..) else { return Inner::Uncertain };
        if rest.is_empty() {
            return Inner::Same;
        }
        let mut words = rest.to_vec();
        if self.adds_words {
            words.push(Word::Unknown);
        }
        // `./nohup` may be any program, and options change what happens (`exec -a`).
        let changes_nothing = self.changes_nothing && is_bare && !is_optioned;
        Inner::Command { words, changes_nothing }
    }
}

fn base(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

fn may_run_commands(word: &Word) -> bool {
    match word {
        Word::Literal(text) | Word::Glob(text) => text.contains("$(") || text.contains('`'),
        Word::Unknown => true,
    }
}
