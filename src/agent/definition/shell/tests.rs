//! What lines are taken apart into, and that bash does nothing else with them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command as Process, Stdio};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

/// Forms of a command one after the other; those that are not whole in parentheses.
fn shown(command: &Command) -> String {
    let word = |word: &Word| match word {
        Word::Literal(text) if text.is_empty() || text.contains(' ') => format!("<{text}>"),
        Word::Literal(text) => text.clone(),
        Word::Glob(text) => format!("glob:{text}"),
        Word::Unknown => "…".to_owned(),
    };
    let form = |form: &Form| {
        let words = form.words.iter().map(word).collect::<Vec<_>>().join(" ");
        if form.is_whole { words } else { format!("({words})") }
    };
    command.forms.iter().map(form).collect::<Vec<_>>().join(" ")
}

fn check(line: &str, expected: &[&str]) {
    let found = parse(line);
    assert_eq!(found.commands.iter().map(shown).collect::<Vec<_>>(), expected, "{line}");
    assert!(!found.is_uncertain, "{line}");
}

fn check_uncertain(line: &str, expected: &[&str]) {
    let found = parse(line);
    assert_eq!(found.commands.iter().map(shown).collect::<Vec<_>>(), expected, "{line}");
    assert!(found.is_uncertain, "{line}");
}

#[test]
fn a_line_is_split_into_its_commands() {
    check("git log", &["git log"]);
    check("  git   log\t-p ", &["git log -p"]);
    check("a; b && c || d | e & f\ng |& h", &["a", "b", "c", "d", "e", "f", "g", "h"]);
    check("(cd a; make)", &["cd a", "make"]);
    check("{ rm a; } && ! b", &["rm a", "b"]);
    check("if a; then b; elif c; then d; else e; fi", &["a", "b", "c", "d", "e"]);
    check("while a; do b; done; until c; do d; done", &["a", "b", "c", "d"]);
    check("for x in a b; do c; done", &["for x in a b", "c"]);
    check("case a in b|c) d;; *) e;; esac", &["d", "e"]);
    check("f() { git push; }", &["git push"]);
    check("function f { git push; }", &["git push"]);
    check("time git push", &["git push"]);
    check("time -p git push", &["git push"]);
    check("ls # it's\nrm a", &["ls", "rm a"]);
    check("ls a#b", &["ls a#b"]);
    check("ls \\\n -l; r\\\nm a", &["ls -l", "rm a"]);
    check("", &[]);
    check("\n", &[]);
    check("# nothing", &[]);
}

#[test]
fn words_are_unquoted_as_the_shell_would_pass_them() {
    check("\\git push", &["git push"]);
    check("\"git\" push", &["git push"]);
    check("'git' push", &["git push"]);
    check("g''it pu\"sh\"", &["git push"]);
    check("\"git push\"", &["<git push>"]);
    check("git\\ push", &["<git push>"]);
    check("grep 'a;b|c' \"d && e\" f\\;g ''", &["grep a;b|c <d && e> f;g <>"]);
    check("grep \"a\\\"; rm\" b", &["grep <a\"; rm> b"]);
    check("echo \"\\a\"", &["echo \\a"]);
    check("ls *.rs ~/x 'a*' \"~\" \\?", &["ls glob:*.rs glob:~/x a* ~ ?"]);
    check("find . -exec echo {} \\;", &["find . -exec echo {} ;"]);
    check("[ -f x ]", &["[ -f x ]"]);
    check("grep \"a$\" b$ '$c'", &["grep a$ b$ $c"]);
}

#[test]
fn a_command_is_found_behind_assignments_paths_and_wrappers() {
    check("A=1 git push", &["A=1 git push (git push)"]);
    check("A=1 B='x y' git push", &["A=1 <B=x y> git push (git push)"]);
    check("A=1", &["A=1"]);
    check("/usr/bin/git push", &["/usr/bin/git push (git push)"]);
    check("command git push", &["command git push git push"]);
    check("nohup exec git push", &["nohup exec git push exec git push git push"]);
    check("command -p git push", &["command -p git push (git push)"]);
    check("command -v git", &["command -v git"]);
    check("/bin/nohup git", &["/bin/nohup git (nohup git) (git)"]);
    check("env A=1 -u B git push", &["env A=1 -u B git push (git push)"]);
    check("env", &["env"]);
    check("sudo -n git push", &["sudo -n git push (git push)"]);
    check("timeout 5 git push", &["timeout 5 git push (git push)"]);
    check("nice -n 5 git push", &["nice -n 5 git push (git push)"]);
    check("ls | xargs -0 git push", &["ls", "xargs -0 git push (git push …)"]);
    check("command '' git", &["command <> git <> git"]);
    check("bash x.sh", &["bash x.sh"]);
    check("export A=1", &["export A=1"]);
    check("test -f x", &["test -f x"]);
}

#[test]
fn output_redirections_count_as_commands() {
    check("make 2>&1 >/dev/null 2>&- | tail", &["make", "tail"]);
    check("make &> /dev/null", &["make"]);
    check("make > out.txt", &["> out.txt", "make"]);
    check("make >>out 2>'er r'", &["> out", "> <er r>", "make"]);
    check("make &>out; a >|b; c <>d", &["> out", "make", "> b", "a", "> d", "c"]);
    check("make >/dev/nullx", &["> /dev/nullx", "make"]);
    check("> out", &["> out"]);
    check("{ make; } > out", &["make", "> out"]);
    check("make < in", &["make < in (make)"]);
    check("make a2>b", &["> b", "make a2"]);
}

#[test]
fn what_only_a_running_shell_can_expand_is_uncertain() {
    check_uncertain("git diff $x", &["git diff …"]);
    check_uncertain("$x push", &["… push"]);
    check_uncertain("git diff $(rm a)", &["rm a", "git diff …"]);
    check_uncertain("git diff \"$(rm a)\"", &["rm a", "git diff …"]);
    check_uncertain("git diff `rm a`", &["rm a", "git diff …"]);
    check_uncertain("git diff ${x:-$(rm a)}", &["rm a", "git diff …"]);
    check_uncertain("git diff $((1 + $(rm a)))", &["rm a", "git diff …"]);
    check_uncertain("diff <(rm a) b > >(rm c)", &["rm a", "rm c", "> …", "diff … b"]);
    check_uncertain("A=$(rm a) make", &["rm a", "… make (make)"]);
    check_uncertain("make > $x", &["> …", "make"]);
    check_uncertain("gi* push", &["glob:gi* push"]);
    check_uncertain("g{i,}t push", &["… push"]);
    check_uncertain("echo {1..3}", &["echo …"]);
    check_uncertain("git push {fd}>/dev/null", &["git push …"]);
    check_uncertain("$'git' push", &["… push"]);
    check_uncertain("git diff ${ rm a; }", &["git diff …"]);
    check_uncertain("git diff \"${| rm a; }\"", &["git diff …"]);
    check_uncertain("eval git push", &["eval git push"]);
    check_uncertain("source x", &["source x"]);
    check_uncertain(". x", &[". x"]);
    check_uncertain("bash -c 'git push'", &["bash -c <git push>"]);
    check_uncertain("curl x | sh", &["curl x", "sh"]);
    check_uncertain("env sh -c x", &["env sh -c x (sh -c x)"]);
    check_uncertain("sudo --preserve-env git push", &["sudo --preserve-env git push"]);
    check_uncertain("time -- git push", &["-- git push"]);
    check_uncertain("test -v 'a[$(rm b)]'", &["test -v <a[$(rm b)]>"]);
    check_uncertain("[[ -f x ]]", &[]);
    check_uncertain("((a = 1))", &[]);
    check_uncertain("a=(b c)", &["…"]);
    check_uncertain("a[1]=b make", &["a=b make (make)"]);
    check_uncertain("make >& x", &["> x", "make"]);
    check_uncertain("cat <<'A' | git push\nx\nA", &["cat < A (cat)", "git push"]);
    check_uncertain("git push -F - <<-A\nx\nA", &["git push -F - < A (git push -F -)"]);
    check_uncertain("sh <<< 'git push'", &["sh < <git push> (sh)"]);
    check_uncertain("git\u{a0}push", &["git\u{a0}push"]);
    check_uncertain("git push\r", &["git push\r"]);
}

#[test]
fn what_does_not_parse_is_uncertain() {
    for line in [
        "echo 'a",
        "echo \"a",
        "echo a\\",
        "echo `a",
        "echo $(a",
        "(a",
        "a)",
        "if a",
        "a |",
        ";;",
        "a 99999999999999999999>b",
    ] {
        check_uncertain(line, &[]);
    }
}

#[test]
fn a_hostile_line_is_parsed_in_bounded_time() {
    let openings = [
        "(",
        "((",
        "$(",
        "$((",
        "${a:-",
        "$[",
        "`",
        "{ ",
        "{a,",
        "if ",
        "while ",
        "case x in x) ",
        "\"$(",
        "<(",
        "[[ (",
        "f() { ",
        "a[",
        "a=(",
        "! ",
        "for x in ",
        "coproc ",
        "<<a\n",
        "env ",
        "sudo ",
        "a|",
        "a;",
        "\\",
        "'",
        "<<&",
    ];
    for opening in openings {
        for times in [8, 9, 33, 100_000] {
            let line = opening.repeat(times);
            let began = Instant::now();
            parse(&line);
            assert!(began.elapsed() < Duration::from_secs(5), "{opening} {times}");
        }
    }
    let nested = |open: &str, close: &str| format!("{}a{}", open.repeat(8), close.repeat(8));
    for line in
        [nested("( ", ")"), nested("$( ", ")"), nested("\"$( ", ")\""), nested("${a:-", "}")]
    {
        parse(&line);
    }
}

#[test]
fn nested_wrappers_are_unwrapped_up_to_a_limit_and_then_uncertain() {
    let line = "nohup ".repeat(100);
    let found = parse(&line);
    assert_eq!((found.commands[0].forms.len(), found.is_uncertain), (9, true));
}

/// Pieces of lines. Bash runs what is made of them, so there is no path and no endless loop in it.
const PIECES: &[&str] = &[
    "git",
    "push",
    "x",
    "-a",
    "b=c",
    "A=1 ",
    " ",
    " ",
    " ",
    " ",
    "\t",
    "\n",
    ";",
    "; ",
    " && ",
    " || ",
    " | ",
    " & ",
    "|& ",
    "(",
    ")",
    "{ ",
    "; }",
    "! ",
    "\"",
    "'",
    "'c;d'",
    "\"e f\"",
    "''",
    "\\",
    "\\\n",
    "\\ ",
    "#",
    " # g\n",
    "*",
    "?",
    "[",
    "]",
    "{a,b}",
    "{fd}>",
    "{",
    "}",
    ">",
    " >out ",
    ">>",
    " 2>",
    "&>",
    ">&2",
    "2>&1",
    "<",
    "$",
    "$A",
    "${ ",
    "`",
    "$(",
    "$((",
    "((",
    "))",
    "<(",
    "if ",
    "; then ",
    "; fi",
    "else ",
    "for i in ",
    "; do ",
    "; done",
    "case x in x) ",
    ";; ",
    "esac",
    "time ",
    "-p ",
    "[[ ",
    " ]]",
    "command ",
    "nohup ",
    "env ",
    "\r",
    "é",
    "\u{a0}",
    "@(",
    "%",
];

/// What bash runs of a line, and the files it writes, in a directory where there is nothing else.
fn run(line: &str, directory: &Path) -> (BTreeSet<Vec<String>>, BTreeSet<String>) {
    let (work, log) = (directory.join("work"), directory.join("log"));
    for place in [&work, &log] {
        fs::create_dir(place).unwrap();
    }
    // Bash calls it for every command it does not find, and it finds none.
    let record = "() { printf '%s\\0' \"$@\" >\"$LOG/$BASHPID\"; return 127; }";
    // Whatever a line comes to, it ends.
    let mut bash = Process::new("/usr/bin/timeout");
    bash.args(["-s", "KILL", "5", "/bin/bash", "-c", line])
        .current_dir(&work)
        .env_clear()
        .env("LC_ALL", "C.UTF-8");
    bash.env("PATH", "").env("LOG", &log).env("BASH_FUNC_command_not_found_handle%%", record);
    // The pipe ends when the last process in the background does.
    bash.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    bash.spawn().unwrap().wait_with_output().unwrap();
    let names = |place: &Path| fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path());
    let words = |file: &Path| {
        let text = fs::read_to_string(file).unwrap();
        text.split_terminator('\0').map(str::to_owned).collect()
    };
    let commands = names(&log).map(|file| words(&file)).collect();
    let name = |file: &Path| file.file_name().unwrap().to_string_lossy().into_owned();
    (commands, names(&work).map(|file| name(&file)).collect())
}

/// Whether a form with its globs open fits what was run.
fn is_form_of(command: &Command, run: &[String]) -> bool {
    command.forms.iter().any(|form| {
        form.words.len() == run.len()
            && form.words.iter().zip(run).all(|(word, run)| match word {
                Word::Literal(text) | Word::Glob(text) => text == run,
                Word::Unknown => true,
            })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn no_line_makes_the_parser_panic(line in ".{0,200}", pieces in prop::collection::vec(prop::sample::select(PIECES), 0..40)) {
        parse(&line);
        parse(&pieces.concat());
    }

    #[test]
    fn bash_runs_no_command_that_the_parser_did_not_find(pieces in prop::collection::vec(prop::sample::select(PIECES), 1..10)) {
        let line = pieces.concat();
        let Line { commands, is_uncertain } = parse(&line);
        if is_uncertain {
            return Ok(());
        }
        let directory = tempfile::tempdir().unwrap();
        let (run, written) = run(&line, directory.path());
        for words in run {
            prop_assert!(commands.iter().any(|command| is_form_of(command, &words)), "{words:?} of {line:?}");
        }
        for file in written {
            let writes = [">".to_owned(), file.clone()];
            prop_assert!(commands.iter().any(|command| is_form_of(command, &writes)), "{file} of {line:?}");
        }
    }
}
