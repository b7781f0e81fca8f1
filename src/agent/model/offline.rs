//! `offline/explorer`: a model that needs no server and no key. It follows rules and does not
//! reason: it takes the words of the task, searches the workspace for them with real tool calls,
//! reads the best places, and reports files and lines. The same question in the same workspace
//! gets the same answer.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use super::{Call, Finish, Piece, Request};
use crate::agent::INTERRUPTED;
use crate::text::clip;
use crate::transcript::{Message, Part, Role, Tokens};

/// The tools it knows how to use.
const TOOLS: [&str; 5] = ["read", "list", "glob", "grep", "todo"];

const MOST_WORDS: usize = 4;
const MOST_FILES: usize = 3;
const MOST_FINDINGS: usize = 12;
const LONGEST_LINE: usize = 120;

/// Endings of the names of generated files, which people do not read.
const GENERATED: [&str; 3] = [".lock", ".snap", ".svg"];

/// Stop words: they say nothing about where to look.
const EMPTY_WORDS: &[&str] = &[
    "about",
    "after",
    "again",
    "agent",
    "all",
    "also",
    "and",
    "any",
    "are",
    "around",
    "before",
    "can",
    "code",
    "codebase",
    "could",
    "describe",
    "does",
    "each",
    "every",
    "explain",
    "file",
    "files",
    "find",
    "for",
    "from",
    "get",
    "give",
    "handled",
    "has",
    "have",
    "how",
    "into",
    "its",
    "list",
    "look",
    "make",
    "more",
    "most",
    "name",
    "need",
    "not",
    "our",
    "out",
    "please",
    "project",
    "report",
    "repository",
    "search",
    "should",
    "show",
    "some",
    "source",
    "such",
    "tell",
    "than",
    "that",
    "the",
    "their",
    "them",
    "then",
    "there",
    "these",
    "they",
    "this",
    "through",
    "use",
    "used",
    "uses",
    "using",
    "want",
    "was",
    "were",
    "what",
    "when",
    "where",
    "which",
    "who",
    "why",
    "will",
    "with",
    "would",
    "you",
    "your",
];

/// A line of a file that contains a word of the task.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hit {
    path: String,
    line: u32,
    text: String,
    word: String,
}

/// The next answer: two rounds of tool calls (search, then read), then the report. It has no state; which
/// round comes next is read from the conversation, so it goes on after a restart like any model.
pub(super) fn answer(request: &Request) -> Vec<Piece> {
    let task = Task::of(&request.messages);
    let can = |name: &str| request.tools.iter().any(|tool| tool.name == name);
    let words = words(&task.prompt);
    let again = task.cut_off();
    let calls = match task.stage() {
        _ if !again.is_empty() => again,
        0 => search(&words, &request.system, can),
        1 => read(&task, &words, can),
        _ => Vec::new(),
    };
    let mut pieces = Vec::new();
    let finish = if calls.is_empty() {
        pieces.extend(in_pieces(&report(&task, &words)));
        Finish::Stop
    } else {
        let what = match task.stage() {
            0 => format!("Searching for: {}.", words.join(", ")),
            _ => "Reading the best matches.".to_owned(),
        };
        pieces.push(Piece::Text(what));
        // Ids must be unique in the conversation.
        let round = format!("{}-{}", request.messages.len(), task.rounds.len());
        pieces.extend(calls.into_iter().enumerate().map(|(n, (name, arguments))| {
            Piece::Call(Call { id: format!("call-{round}-{n}"), name: name.into(), arguments })
        }));
        Finish::ToolCalls
    };
    // A rough estimate, so that limits and compaction have something to work with.
    pieces.push(Piece::Usage(Tokens {
        input: size(&request.messages) / 4,
        output: pieces.len() as u64,
        ..Tokens::default()
    }));
    pieces.push(Piece::End(finish));
    pieces
}

/// The last prompt, and what was done about it so far.
struct Task {
    prompt: String,
    /// The calls of each round: tool, arguments, result.
    rounds: Vec<Vec<(String, Value, String)>>,
}

impl Task {
    fn of(messages: &[Message]) -> Task {
        // The last prompt of a person: synthetic ones (compaction, "go on") are not a new task.
        let asked = |message: &Message| {
            message.info.role == Role::User
                && message.parts.iter().any(|p| matches!(p, Part::Text { synthetic: false, .. }))
        };
        let start = messages.iter().rposition(asked).unwrap_or(0);
        let rounds = messages[start..].iter().map(calls).filter(|calls| !calls.is_empty());
        Task {
            prompt: messages.get(start).map(Message::text).unwrap_or_default(),
            rounds: rounds.collect(),
        }
    }

    /// How many rounds are done. One with an interrupted call does not count; its calls are made again.
    fn stage(&self) -> usize {
        self.rounds.iter().filter(|round| !round.iter().any(is_cut_off)).count()
    }

    /// The calls of the last round that were interrupted by a restart and have to be made again. Its tools
    /// only read, so that is safe.
    fn cut_off(&self) -> Vec<(&'static str, Value)> {
        let last = self.rounds.last().map(Vec::as_slice).unwrap_or_default().iter();
        let known = |name: &str| TOOLS.into_iter().find(|tool| *tool == name);
        last.filter(|call| is_cut_off(call))
            .filter_map(|(tool, arguments, _)| Some((known(tool)?, arguments.clone())))
            .collect()
    }

    fn hits(&self) -> Vec<Hit> {
        let calls = self.rounds.iter().flatten().filter(|(tool, _, _)| tool == "grep");
        let mut hits = Vec::new();
        for (_, arguments, result) in calls {
            let word = arguments["pattern"].as_str().unwrap_or_default();
            hits.extend(result.lines().filter_map(|line| parse_hit(line, word)));
        }
        hits
    }
}

fn is_cut_off((_, _, result): &(String, Value, String)) -> bool {
    result == INTERRUPTED
}

fn calls(message: &Message) -> Vec<(String, Value, String)> {
    let calls = message.parts.iter().filter_map(|part| match part {
        Part::Tool { tool, state, .. } => {
            let result = state.output.clone().or(state.error.clone()).unwrap_or_default();
            Some((tool.clone(), state.input.clone(), result))
        }
        _ => None,
    });
    calls.collect()
}

/// Parses a line of `grep`'s output, `path:line: text`.
fn parse_hit(line: &str, word: &str) -> Option<Hit> {
    let (path, rest) = line.split_once(':')?;
    let (number, text) = rest.split_once(':')?;
    Some(Hit {
        path: path.to_owned(),
        line: number.parse().ok()?,
        text: text.trim().to_owned(),
        word: word.to_owned(),
    })
}

/// The words of the task that are worth a search: longest first, because longer words are rarer.
fn words(prompt: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in prompt.split(|c: char| !(c.is_alphanumeric() || c == '_')) {
        let word = word.to_lowercase();
        let says_something = word.chars().count() > 2 && !EMPTY_WORDS.contains(&word.as_str());
        if says_something && !words.contains(&word) {
            words.push(word);
        }
    }
    // Stable, so that words of the same length keep the order of the prompt.
    words.sort_by_key(|word| std::cmp::Reverse(word.chars().count()));
    words.truncate(MOST_WORDS);
    words
}

fn search(
    words: &[String],
    system: &str,
    can: impl Fn(&str) -> bool,
) -> Vec<(&'static str, Value)> {
    let mut calls = Vec::new();
    if can("todo") {
        calls.push(("todo", todos("in_progress", "pending")));
    }
    if can("list") {
        calls.push(("list", json!({ "path": "." })));
    }
    if can("grep") {
        // By its system prompt this is an agent for documentation (`librarian`): search only that.
        let docs = system.contains("documentation").then_some("*.{md,toml,json,txt,yml,yaml}");
        for word in words {
            let mut arguments = json!({ "pattern": word, "case_insensitive": true });
            if let Some(docs) = docs {
                arguments["include"] = json!(docs);
            }
            calls.push(("grep", arguments));
        }
    }
    if can("glob") {
        calls.extend(
            words.iter().take(2).map(|word| ("glob", json!({ "pattern": format!("**/*{word}*") }))),
        );
    }
    calls
}

fn read(task: &Task, words: &[String], can: impl Fn(&str) -> bool) -> Vec<(&'static str, Value)> {
    let mut calls = Vec::new();
    if can("read") {
        for hit in best(&task.hits(), words).into_iter().take(MOST_FILES) {
            // A few lines before the match, for its context.
            let offset = hit.line.saturating_sub(3).max(1);
            calls.push(("read", json!({ "path": hit.path, "offset": offset, "limit": 20 })));
        }
    }
    if can("todo") {
        calls.push(("todo", todos("completed", "completed")));
    }
    calls
}

fn todos(search: &str, report: &str) -> Value {
    json!({ "todos": [
        { "content": "search for the words of the task", "status": search },
        { "content": "read what fits best and report it", "status": report },
    ] })
}

/// The best line of each file. Files are ranked by how many different words they contain, one that is named after a
/// word like one with two more, then by definitions, then by matches; ties by path, so that the answer is always the
/// same. What programs write comes last.
fn best(hits: &[Hit], words: &[String]) -> Vec<Hit> {
    let mut files: BTreeMap<&str, Vec<&Hit>> = BTreeMap::new();
    for hit in hits {
        files.entry(&hit.path).or_default().push(hit);
    }
    // Capped, so that a file with many matches of one word cannot outrank one with two different words.
    let worth = |path: &str, hits: &[&Hit]| {
        if GENERATED.iter().any(|ending| path.ends_with(ending)) {
            return 0;
        }
        let stem = Path::new(path).file_stem().unwrap_or_default().to_string_lossy();
        let named = words.iter().filter(|word| stem.to_lowercase() == **word).count();
        let different = words.iter().filter(|word| hits.iter().any(|hit| hit.word == **word));
        let defined = hits.iter().filter(|hit| is_definition(&hit.text)).count();
        (different.count() + 2 * named) * 100 + defined.min(9) * 10 + hits.len().min(9)
    };
    let mut files: Vec<(&str, Vec<&Hit>)> = files.into_iter().collect();
    files.sort_by(|(path, hits), (other_path, other)| {
        worth(other_path, other).cmp(&worth(path, hits)).then_with(|| path.cmp(other_path))
    });
    let first = |hits: &[&Hit]| -> Option<Hit> {
        let best = hits.iter().find(|hit| is_definition(&hit.text)).or(hits.first());
        best.map(|hit| (*hit).clone())
    };
    files.iter().filter_map(|(_, hits)| first(hits)).collect()
}

/// Whether a line looks like a definition, which is a better place to look than a use.
fn is_definition(line: &str) -> bool {
    const MAKERS: [&str; 12] = [
        "fn ",
        "struct ",
        "enum ",
        "trait ",
        "class ",
        "def ",
        "function ",
        "interface ",
        "type ",
        "impl ",
        "# ",
        "const ",
    ];
    MAKERS.iter().any(|maker| line.trim_start_matches("pub ").contains(maker))
}

fn report(task: &Task, words: &[String]) -> String {
    let hits = task.hits();
    let best = best(&hits, words);
    let mut lines = Vec::new();
    if best.is_empty() {
        lines.push(match words.is_empty() {
            true => "Nothing in the task to search for.".to_owned(),
            false => format!("No line in this workspace mentions {}.", words.join(", ")),
        });
    } else {
        let files = best.len();
        let matches = counted(hits.len(), "match", "matches");
        let in_files = counted(files, "file", "files");
        lines.push(format!("{matches} in {in_files}. The best places:"));
        lines.push(String::new());
        for hit in best.iter().take(MOST_FINDINGS) {
            lines.push(format!("- {}:{}: {}", hit.path, hit.line, clip(&hit.text, LONGEST_LINE)));
        }
        if files > MOST_FINDINGS {
            let more = counted(files - MOST_FINDINGS, "more file", "more files");
            lines.push(format!("- … and {more}"));
        }
    }
    let named = task.rounds.iter().flatten().filter(|(tool, _, _)| tool == "glob");
    let named: Vec<&str> = named
        .flat_map(|(_, _, result)| result.lines())
        .filter(|line| !line.contains(' ') && !line.is_empty())
        .take(5)
        .collect();
    if !named.is_empty() {
        lines.push(String::new());
        lines.push(format!("Files named like it: {}", named.join(", ")));
    }
    lines.push(String::new());
    lines.push(format!(
        "(By the offline explorer: a search by rules for {}, not the judgement of a language model.)",
        if words.is_empty() { "nothing".to_owned() } else { words.join(", ") }
    ));
    lines.join("\n")
}

fn counted(number: usize, one: &str, many: &str) -> String {
    let noun = if number == 1 { one } else { many };
    format!("{number} {noun}")
}

/// Line by line, as a server would stream it.
fn in_pieces(text: &str) -> Vec<Piece> {
    text.split_inclusive('\n').map(|line| Piece::Text(line.to_owned())).collect()
}

fn size(messages: &[Message]) -> u64 {
    let of = |part: &Part| match part {
        Part::Text { text, .. } | Part::Reasoning { text, .. } => text.len(),
        Part::Tool { state, .. } => state.output.as_ref().map_or(0, String::len),
        Part::Compaction { .. } | Part::Other => 0,
    };
    messages.iter().flat_map(|message| &message.parts).map(of).sum::<usize>() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::tools::Spec;

    fn request(messages: Vec<Message>) -> Request {
        let tool = |name| Spec { name, description: "", schema: json!({}) };
        Request {
            model: "explorer".into(),
            system: String::new(),
            messages,
            tools: ["read", "list", "glob", "grep", "todo"].map(tool).to_vec(),
        }
    }

    fn user(text: &str) -> Message {
        serde_json::from_value(json!({
            "info": { "id": "p", "role": "user", "time": { "created": 1 } },
            "parts": [{ "type": "text", "text": text }],
        }))
        .unwrap()
    }

    fn done(calls: &[(&str, Value, &str)]) -> Message {
        let parts: Vec<Value> = calls
            .iter()
            .map(|(tool, input, output)| {
                json!({ "type": "tool", "callID": "c", "tool": tool,
                        "state": { "status": "completed", "input": input, "output": output } })
            })
            .collect();
        serde_json::from_value(json!({
            "info": { "id": "a", "role": "assistant", "time": { "created": 2 } }, "parts": parts,
        }))
        .unwrap()
    }

    fn made(pieces: &[Piece]) -> Vec<(String, Value)> {
        let calls = pieces.iter().filter_map(|piece| match piece {
            Piece::Call(call) => Some((call.name.clone(), call.arguments.clone())),
            _ => None,
        });
        calls.collect()
    }

    fn said(pieces: &[Piece]) -> String {
        let texts = pieces.iter().filter_map(|piece| match piece {
            Piece::Text(text) => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }

    #[test]
    fn the_search_terms_of_a_task_leave_out_common_words() {
        assert_eq!(
            words("Where is the LOGIN handled, and what is `user_session`?"),
            ["user_session", "login"]
        );
        assert_eq!(words("find the code"), [""; 0]);
    }

    #[test]
    fn the_offline_model_searches_then_reads_then_reports_files_and_lines() {
        let prompt = user("Where is the login of a session?");
        let first = answer(&request(vec![prompt.clone()]));
        let expected = [
            ("todo", todos("in_progress", "pending")),
            ("list", json!({ "path": "." })),
            ("grep", json!({ "pattern": "session", "case_insensitive": true })),
            ("grep", json!({ "pattern": "login", "case_insensitive": true })),
            ("glob", json!({ "pattern": "**/*session*" })),
            ("glob", json!({ "pattern": "**/*login*" })),
        ];
        assert_eq!(made(&first), expected.map(|(name, arguments)| (name.to_owned(), arguments)));
        assert_eq!(first.last(), Some(&Piece::End(Finish::ToolCalls)));

        let searched = done(&[
            ("grep", json!({ "pattern": "session" }), "a.rs:3: let session = 1;\nb.rs:9: session"),
            ("grep", json!({ "pattern": "login" }), "b.rs:12: pub fn login() {\nno match here"),
            ("glob", json!({}), "src/login.rs"),
        ]);
        let second = answer(&request(vec![prompt.clone(), searched.clone()]));
        let expected = [
            ("read", json!({ "path": "b.rs", "offset": 9, "limit": 20 })),
            ("read", json!({ "path": "a.rs", "offset": 1, "limit": 20 })),
            ("todo", todos("completed", "completed")),
        ];
        assert_eq!(made(&second), expected.map(|(name, arguments)| (name.to_owned(), arguments)));

        let read = done(&[("read", json!({}), "…")]);
        let third = answer(&request(vec![prompt, searched, read]));
        assert_eq!(
            said(&third),
            "3 matches in 2 files. The best places:\n\n\
             - b.rs:12: pub fn login() {\n- a.rs:3: let session = 1;\n\n\
             Files named like it: src/login.rs\n\n\
             (By the offline explorer: a search by rules for session, login, not the judgement of \
             a language model.)"
        );
        assert_eq!(third.last(), Some(&Piece::End(Finish::Stop)));
    }

    #[test]
    fn a_file_named_after_a_word_comes_early_and_what_programs_wrote_last() {
        let hit = |path: &str, word: &str| Hit {
            path: path.into(),
            line: 1,
            text: String::new(),
            word: word.into(),
        };
        let words = ["entry", "main"].map(str::to_owned);
        let found = [
            hit("a.svg", "entry"),
            hit("a.svg", "main"),
            hit("b.rs", "main"),
            hit("c.rs", "entry"),
            hit("c.rs", "main"),
            hit("src/main.rs", "main"),
        ];
        let paths: Vec<String> = best(&found, &words).into_iter().map(|hit| hit.path).collect();
        assert_eq!(paths, ["src/main.rs", "c.rs", "b.rs", "a.svg"]);
    }

    #[test]
    fn the_offline_model_uses_only_the_tools_it_was_given_and_reports_when_it_finds_nothing() {
        let mut request = request(vec![user("Where is the login?")]);
        request.tools.clear();
        let pieces = answer(&request);
        assert_eq!(made(&pieces), []);
        assert!(said(&pieces).starts_with("No line in this workspace mentions login."));
    }

    #[test]
    fn an_interrupted_search_is_repeated() {
        let prompt = user("Where is the login?");
        let grep = json!({ "pattern": "login" });
        let cut = done(&[("list", json!({}), "src"), ("grep", grep.clone(), INTERRUPTED)]);
        let calls = made(&answer(&request(vec![prompt.clone(), cut.clone()])));
        assert_eq!(calls, [("grep".to_owned(), grep.clone())]);
        let again = done(&[("grep", grep, "a.rs:1: login")]);
        let calls = made(&answer(&request(vec![prompt, cut, again])));
        assert_eq!(calls[0].0, "read", "{calls:?}");
    }

    #[test]
    fn a_follow_up_is_searched_for_by_itself() {
        let old = [user("Where is the login?"), done(&[("grep", json!({}), "a.rs:1: login")])];
        let mut messages = old.to_vec();
        messages.push(user("And the logout?"));
        let calls = made(&answer(&request(messages)));
        assert!(
            calls.contains(&(
                "grep".into(),
                json!({ "pattern": "logout", "case_insensitive": true })
            ))
        );
    }
}
