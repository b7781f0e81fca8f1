//! `read`, `edit` and `write`.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::json;

use super::ToolFixture;
use crate::agent::tools::Error;

fn mode(fixture: &ToolFixture, path: &str) -> u32 {
    fs::metadata(fixture.path(path)).unwrap().permissions().mode() & 0o7777
}

fn pipe(fixture: &ToolFixture, path: &str) {
    assert!(Command::new("mkfifo").arg(fixture.path(path)).status().unwrap().success());
}

fn huge(fixture: &ToolFixture, path: &str, start: &str) {
    let mut file = File::create(fixture.path(path)).unwrap();
    file.write_all(start.as_bytes()).unwrap();
    file.set_len(4 << 30).unwrap();
}

#[tokio::test]
async fn lines_are_numbered_and_a_part_can_be_asked_for() {
    let fixture = ToolFixture::with(&[("a.txt", "one\ntwo\r\nthree\nfour"), ("empty", "")]);
    let read = async |offset: u64, limit: u64, expected: &str| {
        fixture
            .check("read", json!({ "path": "a.txt", "offset": offset, "limit": limit }), expected)
            .await;
    };
    fixture
        .check(
            "read",
            json!({ "path": "a.txt" }),
            "     1\tone\n     2\ttwo\n     3\tthree\n     4\tfour\n",
        )
        .await;
    read(2, 1, "     2\ttwo\n(there is more; go on with `offset: 3`)\n").await;
    read(3, 2, "     3\tthree\n     4\tfour\n").await;
    read(4, 9, "     4\tfour\n").await;
    read(0, 0, "     1\tone\n(there is more; go on with `offset: 2`)\n").await;
    read(5, 1, "error: `a.txt` has only 4 lines; pass a smaller `offset`").await;
    read(u64::MAX, u64::MAX, "error: `a.txt` has only 4 lines; pass a smaller `offset`").await;
    fixture.check("read", json!({ "path": "empty" }), "(the file is empty)").await;
}

#[tokio::test]
async fn long_lines_and_long_files_are_cut() {
    let fixture = ToolFixture::new();
    fixture.file("lines", "x\n".repeat(3_000));
    let text = fixture.call("read", json!({ "path": "lines" })).await;
    assert_eq!(text.lines().count(), 2_001);
    assert!(text.ends_with("  2000\tx\n(there is more; go on with `offset: 2001`)\n"), "{text}");

    fixture.file("wide", format!("{}\nend\n{}", "🙂".repeat(2_001), "ä".repeat(2_000)));
    let text = fixture.call("read", json!({ "path": "wide" })).await;
    let expected =
        format!("     1\t{}…\n     2\tend\n     3\t{}\n", "🙂".repeat(2_000), "ä".repeat(2_000));
    assert_eq!(text, expected);

    fixture.file("endless", "a".repeat(3 << 20) + "\nnext\n");
    let text = fixture.call("read", json!({ "path": "endless" })).await;
    assert_eq!(text, format!("     1\t{}…\n     2\tnext\n", "a".repeat(2_000)));

    fixture.file("much", format!("{}\n", "b".repeat(1_000)).repeat(1_000));
    let text = fixture.call("read", json!({ "path": "much" })).await;
    assert!(text.chars().count() < 101_000);
    assert!(text.ends_with("(there is more; go on with `offset: 100`)\n"), "{}", &text[99_000..]);
}

#[tokio::test]
async fn binary_files_are_not_read() {
    let fixture = ToolFixture::new();
    fixture.file("a.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR");
    fixture.file("b.pdf", b"%PDF-1.7\n");
    fixture.file("c", b"what is\0this");
    fixture.file("d.txt", b"\xff\xfea\0b\0");
    fixture.file("latin", b"caf\xe9\n");
    fixture.file("bom", b"\xef\xbb\xbfhello\n");
    fixture.file("mz.txt", b"MZ is how this text begins\n");
    fs::create_dir(fixture.path("dir")).unwrap();
    pipe(&fixture, "pipe");
    let way_out = "look at it with a program, through `bash`";
    for (path, expected) in [
        ("a.png", format!("error: `a.png` is binary (PNG image, 16 bytes); {way_out}")),
        ("b.pdf", format!("error: `b.pdf` is binary (PDF document, 9 bytes); {way_out}")),
        ("c", format!("error: `c` is binary (of unknown kind, 12 bytes); {way_out}")),
        ("d.txt", format!("error: `d.txt` is binary (UTF-16 text, 6 bytes); {way_out}")),
        ("latin", "     1\tcaf\u{fffd}\n".to_owned()),
        ("bom", "     1\thello\n".to_owned()),
        ("mz.txt", "     1\tMZ is how this text begins\n".to_owned()),
        ("dir", "error: `dir` is a directory; `list` shows what is in it".to_owned()),
        ("pipe", "error: `pipe` is a pipe, a socket or a device, not a file".to_owned()),
    ] {
        fixture.check("read", json!({ "path": path }), &expected).await;
    }
}

#[tokio::test]
async fn huge_files_are_not_read_whole() {
    let fixture = ToolFixture::new();
    huge(&fixture, "hole", "");
    huge(&fixture, "begins", &"text\n".repeat(5_000));
    let hole = fixture.run("read", json!({ "path": "hole" })).await;
    let binary = Error::Binary { path: "hole".into(), kind: "of unknown kind", size: 4 << 30 };
    assert_eq!(hole, Err(binary));
    fixture
        .check(
            "read",
            json!({ "path": "begins", "offset": 5_000 }),
            "  5000\ttext\n(binary data from line 5001 on; it is not shown)\n",
        )
        .await;
    fixture.check("grep", json!({ "pattern": "nowhere" }), "no matches").await;
    for path in ["hole", "begins"] {
        let edited = fixture.run("edit", json!({ "path": path, "old": "text", "new": "" })).await;
        assert!(matches!(edited, Err(Error::TooLarge { .. })), "{edited:?}");
    }
}

#[tokio::test]
async fn a_missing_file_is_answered_with_similar_names() {
    let fixture = ToolFixture::with(&[("src/main.rs", ""), ("src/mail.rs", ""), ("README.md", "")]);
    for (path, expected) in [
        ("src/mian.rs", "did you mean `src/main.rs` or `src/mail.rs`?"),
        ("scr/main.rs", "did you mean `src`?"),
        ("readme.md", "did you mean `README.md`?"),
        ("quite/different", "`list` and `glob` show what is there"),
    ] {
        let expected = format!("error: `{path}` does not exist; {expected}");
        fixture.check("read", json!({ "path": path }), &expected).await;
        fixture.check("list", json!({ "path": path }), &expected).await;
        fixture.check("edit", json!({ "path": path, "old": "a", "new": "b" }), &expected).await;
    }
    let long = "x/".repeat(3_000);
    let expected = format!("error: cannot open `{}…`: the path is too long", "x/".repeat(40));
    fixture.check("read", json!({ "path": long }), &expected).await;
    let name = "x".repeat(300);
    let text = fixture.call("read", json!({ "path": name })).await;
    assert!(text.starts_with("error: cannot read `xxx"), "{text}");
    let text = fixture.call("read", json!({ "path": "a\0b" })).await;
    assert!(text.starts_with("error: cannot read `a\0b`"), "{text}");
}

#[tokio::test]
async fn an_edit_changes_one_place_and_keeps_the_rest() {
    let fixture = ToolFixture::with(&[("a.sh", "one\ntwo\ntwo\n")]);
    fs::set_permissions(fixture.path("a.sh"), Permissions::from_mode(0o754)).unwrap();
    fixture
        .check(
            "edit",
            json!({ "path": "a.sh", "old": "one", "new": "1" }),
            "edited `a.sh` in 1 place, first in line 1",
        )
        .await;
    fixture.check(
        "edit",
        json!({ "path": "a.sh", "old": "two", "new": "2" }),
        "error: `old` occurs 2 times in `a.sh`; add what is around it until it is unique, or pass \
         `replace_all: true`",
    )
    .await;
    fixture
        .check(
            "edit",
            json!({ "path": "a.sh", "old": "two", "new": "2", "replace_all": true }),
            "edited `a.sh` in 2 places, first in line 2",
        )
        .await;
    fixture.check(
        "edit",
        json!({ "path": "a.sh", "old": "  1\n2\n3", "new": "" }),
        "error: `old` does not occur in `a.sh` (its first line is like line 1, but the white space \
         or what follows differs); read the file and copy the text exactly, without line numbers",
    )
    .await;
    assert_eq!((fixture.content("a.sh").as_str(), mode(&fixture, "a.sh")), ("1\n2\n2\n", 0o754));
    assert_eq!(fs::read_dir(fixture.path(".")).unwrap().count(), 1, "nothing is left behind");
}

#[tokio::test]
async fn a_file_that_cannot_be_edited_stays_unchanged() {
    let fixture = ToolFixture::new();
    fixture.file("latin", b"caf\xe9\n");
    pipe(&fixture, "pipe");
    fs::create_dir(fixture.path("dir")).unwrap();
    for (path, old, new, expected) in [
        ("latin", "caf", "x", "`latin` is not UTF-8 text; change it through `bash`"),
        ("pipe", "a", "b", "`pipe` is a pipe, a socket or a device, not a file"),
        ("dir", "a", "b", "`dir` is a directory; `list` shows what is in it"),
        (
            "latin",
            "",
            "b",
            "the arguments of `edit` do not fit: `old` is empty; use `write` for a new file",
        ),
        ("latin", "a", "a", "the arguments of `edit` do not fit: `old` and `new` are the same"),
    ] {
        let arguments = json!({ "path": path, "old": old, "new": new });
        fixture.check("edit", arguments, &format!("error: {expected}")).await;
    }
    assert_eq!(fs::read(fixture.path("latin")).unwrap(), b"caf\xe9\n");
}

#[tokio::test]
async fn edits_at_the_same_time_do_not_undo_each_other() {
    let words: Vec<String> = (0..40).map(|number| format!("<{number}>")).collect();
    let fixture = ToolFixture::with(&[("a", &words.join("\n"))]);
    let edits = words.iter().map(|word| {
        fixture.run("edit", json!({ "path": "a", "old": word, "new": word.to_uppercase() + "!" }))
    });
    for edited in futures_util::future::join_all(edits).await {
        edited.unwrap();
    }
    assert_eq!(fixture.content("a"), words.join("!\n") + "!");
}

#[tokio::test]
async fn a_file_is_written_with_the_directories_it_needs() {
    let fixture = ToolFixture::with(&[("old.sh", "old")]);
    fs::set_permissions(fixture.path("old.sh"), Permissions::from_mode(0o700)).unwrap();
    fs::create_dir(fixture.path("dir")).unwrap();
    pipe(&fixture, "pipe");
    for (path, content, expected) in [
        ("a/b/c.txt", "one\ntwo\n", "created `a/b/c.txt` (2 lines)"),
        ("a/b/c.txt", "one", "replaced `a/b/c.txt` (1 line)"),
        ("a/./x/../d", "", "created `a/d` (0 lines)"),
        ("old.sh", "new", "replaced `old.sh` (1 line)"),
        ("dir", "", "error: `dir` is a directory; `list` shows what is in it"),
        (".", "", "error: `.` is a directory; `list` shows what is in it"),
        ("pipe", "", "error: `pipe` is a pipe, a socket or a device, not a file"),
    ] {
        fixture.check("write", json!({ "path": path, "content": content }), expected).await;
    }
    let text = fixture.call("write", json!({ "path": "old.sh/x", "content": "" })).await;
    assert!(text.starts_with("error: cannot write `old.sh/x`: Not a directory"), "{text}");
    assert_eq!(fixture.content("a/b/c.txt"), "one");
    assert_eq!((fixture.content("old.sh").as_str(), mode(&fixture, "old.sh")), ("new", 0o700));
    let made = File::create(fixture.path("by-hand")).unwrap().metadata().unwrap();
    assert_eq!(mode(&fixture, "a/d"), made.permissions().mode() & 0o7777, "as any new file");
}

#[tokio::test]
async fn hooks_git_settings_and_agent_definitions_are_not_written_by_edit_and_write() {
    let files = [(".git/config", "[core]"), (".claude/agents/a.md", "may nothing")];
    let fixture = ToolFixture::with(&files);
    fixture.link("innocent", ".git/config");
    fixture.link("folder", ".git/hooks");
    for (path, shown) in [
        (".git/hooks/pre-commit", ".git/hooks/pre-commit"),
        ("folder/pre-commit", ".git/hooks/pre-commit"),
        (".git/config", ".git/config"),
        ("innocent", ".git/config"),
        (".git/commondir", ".git/commondir"),
        (".claude/agents/new.md", ".claude/agents/new.md"),
        (".opencode/agents/new.md", ".opencode/agents/new.md"),
    ] {
        let expected = Error::Protected { path: shown.to_owned() };
        let write = json!({ "path": path, "content": "x" });
        assert_eq!(fixture.run("write", write).await, Err(expected.clone()), "{path}");
        let edit = json!({ "path": path, "old": "e", "new": "x" });
        assert_eq!(fixture.run("edit", edit).await, Err(expected), "{path}");
    }
    for (path, content) in files {
        assert_eq!(fixture.content(path), content);
    }
    assert!(!fixture.path(".git/hooks").exists() && !fixture.path(".opencode").exists());
    fixture
        .check(
            "write",
            json!({ "path": ".git/info/exclude", "content": "x" }),
            "created `.git/info/exclude` (1 line)",
        )
        .await;
}
