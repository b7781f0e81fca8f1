//! `list`, `glob` and `grep`, and the walk under them.

use std::ffi::OsStr;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::ToolFixture;
use crate::agent::tools::Error;
use crate::agent::tools::halt::Halt;
use crate::agent::tools::walk::{Gaps, walk};

fn project() -> ToolFixture {
    ToolFixture::with(&[
        (".gitignore", "target/\n*.log\n!keep.log\n"),
        (".github/ci.yml", "run: test\n"),
        (".git/config", "test\n"),
        ("src/main.rs", "fn main() {\n    test();\n}\n"),
        ("src/lib.rs", "// Test\n"),
        ("src/gen/.gitignore", "*\n!.gitignore\n"),
        ("src/gen/made.rs", "test\n"),
        ("target/debug/main.rs", "test\n"),
        ("web/app.ts", "test\r\n"),
        ("web/data.bin", "test\n\0test\n"),
        ("build.log", "test\n"),
        ("keep.log", "test\n"),
    ])
}

#[tokio::test]
async fn a_directory_is_listed_without_what_git_ignores() {
    let fixture = project();
    fixture.link("web/up", "../src");
    let root = ".github/\n.gitignore\nkeep.log\nsrc/\nweb/\n(3 left out, as .gitignore says)";
    fixture.check("list", json!({}), root).await;
    fixture.check("list", json!({ "path": fixture.path("") }), root).await;
    fixture.check("list", json!({ "path": "web" }), "app.ts\ndata.bin\nup -> ../src").await;
    fixture.check("list", json!({ "path": "web/up" }), "gen/\nlib.rs\nmain.rs").await;
    fixture.check("list", json!({ "path": "target" }), "debug/").await;
    let none = ".gitignore\n(1 left out, as .gitignore says)";
    fixture.check("list", json!({ "path": "src/gen" }), none).await;
    let file = "error: `keep.log` is not a directory; `read` shows files";
    fixture.check("list", json!({ "path": "keep.log" }), file).await;
    fs::create_dir(fixture.path("void")).unwrap();
    fixture.check("list", json!({ "path": "void" }), "(nothing)").await;
}

#[tokio::test]
async fn lists_are_bounded() {
    let fixture = ToolFixture::new();
    for number in 0..603 {
        fixture.file(&format!("f{number:03}"), "match\nmatch");
    }
    let list = fixture.call("list", json!({})).await;
    assert_eq!(list.lines().count(), 501);
    assert!(list.ends_with("f499\n… and 103 more; `glob` finds some of them"), "{list}");
    let glob = fixture.run("glob", json!({ "pattern": "f*" })).await.unwrap();
    assert_eq!(glob.text.lines().count(), 501);
    assert!(glob.text.ends_with("f499\n… and 103 more; narrow the pattern"), "{}", glob.text);
    assert_eq!(glob.title, "f*: 603 files");
    let grep = fixture.call("grep", json!({ "pattern": "match" })).await;
    assert_eq!(grep.lines().count(), 201);
    let end = "f099:2: match\n… stopped at 200 matches; narrow the pattern, `path` or `include`";
    assert!(grep.ends_with(end), "{grep}");
}

#[tokio::test]
async fn files_are_found_by_name() {
    let fixture = project();
    for (pattern, path, expected) in [
        ("*.rs", ".", "src/lib.rs\nsrc/main.rs"),
        ("./src/*.rs", ".", "src/lib.rs\nsrc/main.rs"),
        ("*/*.{rs,ts}", ".", "src/lib.rs\nsrc/main.rs\nweb/app.ts"),
        ("**/[a-c]*", ".", ".github/ci.yml\nweb/app.ts"),
        ("*.rs", "src", "src/lib.rs\nsrc/main.rs"),
        ("*.rs", "target", "target/debug/main.rs"),
        ("config", ".", "no files found"),
        ("src", ".", "no files found"),
        ("*.log", ".", "keep.log"),
    ] {
        fixture.check("glob", json!({ "pattern": pattern, "path": path }), expected).await;
    }
    for (pattern, reason) in [
        ("/etc/*", "`/etc/*` is not relative; pass the directory as `path`"),
        ("a/../../*", "`a/../../*` is not relative; pass the directory as `path`"),
        (
            "{a,b",
            "error parsing glob '**/{a,b': unclosed alternate group; missing '}' (maybe escape '{' with '[{]'?)",
        ),
    ] {
        let expected = format!("error: the pattern is not valid: {reason}");
        fixture.check("glob", json!({ "pattern": pattern }), &expected).await;
        fixture.check("grep", json!({ "pattern": "a", "include": pattern }), &expected).await;
    }
}

#[tokio::test]
async fn lines_are_found_by_regular_expression() {
    let fixture = project();
    let grep = async |arguments, expected: &str| fixture.check("grep", arguments, expected).await;
    let everywhere = ".github/ci.yml:1: run: test\nkeep.log:1: test\nsrc/main.rs:2:     test();\nweb/app.ts:1: test";
    grep(json!({ "pattern": "test" }), everywhere).await;
    grep(json!({ "pattern": r"^\s+t[e]st\(", "path": "src" }), "src/main.rs:2:     test();").await;
    let either = json!({ "pattern": "TEST", "case_insensitive": true, "include": "*.rs" });
    grep(either, "src/lib.rs:1: // Test\nsrc/main.rs:2:     test();").await;
    grep(json!({ "pattern": "test", "include": "web/*" }), "web/app.ts:1: test").await;
    grep(json!({ "pattern": "test", "path": "web", "include": "app.*" }), "web/app.ts:1: test")
        .await;
    grep(json!({ "pattern": "fn", "path": "src/main.rs" }), "src/main.rs:1: fn main() {").await;
    grep(json!({ "pattern": "test", "path": "build.log" }), "build.log:1: test").await;
    grep(json!({ "pattern": "test", "path": "target" }), "target/debug/main.rs:1: test").await;
    grep(json!({ "pattern": "nowhere" }), "no matches").await;
    grep(
        json!({ "pattern": "test", "path": "scr" }),
        "error: `scr` does not exist; did you mean `src`?",
    )
    .await;
    let text = fixture.call("grep", json!({ "pattern": "(" })).await;
    assert!(text.starts_with("error: the pattern is not valid: regex parse error"), "{text}");
    let text = fixture.call("grep", json!({ "pattern": r"a\nb" })).await;
    assert!(text.starts_with("error: the pattern is not valid: "), "{text}");

    fixture.file("long", format!("test{}\n", "x".repeat(1_000)));
    let cut = format!("long:1: test{}…", "x".repeat(296));
    grep(json!({ "pattern": "test", "path": "long" }), &cut).await;
}

#[tokio::test]
async fn ignore_rules_of_a_repository_above_the_workspace_apply() {
    let mut fixture = project();
    fixture.file(".git/info/exclude", "private.rs\n");
    fixture.file("src/private.rs", "");
    fixture.file("src/left.log", "");
    fixture.context.workspace = super::Workspace::open(&fixture.path("src")).unwrap();
    fixture.check("glob", json!({ "pattern": "*" }), "gen/.gitignore\nlib.rs\nmain.rs").await;
}

#[tokio::test]
async fn names_that_are_not_utf_8_are_shown_with_replacement_characters() {
    let fixture = ToolFixture::new();
    let directory = fixture.path("").join(OsStr::from_bytes(b"d\xfc"));
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join(OsStr::from_bytes(b"caf\xe9.txt")), "coffee").unwrap();
    fixture.check("list", json!({}), "d\u{fffd}/").await;
    fixture.check("glob", json!({ "pattern": "*.txt" }), "d\u{fffd}/caf\u{fffd}.txt").await;
    fixture
        .check("grep", json!({ "pattern": "coffee" }), "d\u{fffd}/caf\u{fffd}.txt:1: coffee")
        .await;
    let text = fixture.call("read", json!({ "path": "d\u{fffd}" })).await;
    assert_eq!(text, "error: `d\u{fffd}` does not exist; did you mean `d\u{fffd}`?");
}

#[tokio::test]
async fn directories_are_searched_up_to_a_maximum_depth() {
    let fixture = ToolFixture::new();
    let deep = "d/".repeat(150);
    fixture.file(&format!("{deep}bottom.txt"), "found");
    fixture.file("top.txt", "found");
    let expected = "top.txt:1: found\n… directories more than 100 levels deep were left out";
    fixture.check("grep", json!({ "pattern": "found" }), expected).await;
    let bottom = format!("{deep}bottom.txt");
    fixture.check("glob", json!({ "pattern": "*.txt", "path": "d/".repeat(60) }), &bottom).await;
}

#[test]
fn a_walk_stops_at_its_deadline_and_when_it_is_cancelled() {
    let fixture = project();
    let start = fixture.context.workspace.place(".").unwrap();
    let go = |halt| walk(&start, &fixture.context, &halt, &mut |_| ControlFlow::Continue(()));
    let cancel = CancellationToken::new();
    let late = go(Halt::after(Duration::ZERO, cancel.clone())).unwrap();
    assert_eq!(late, Gaps { out_of_time: true, ..Gaps::default() });
    cancel.cancel();
    assert_eq!(go(Halt::after(Duration::from_secs(60), cancel)), Err(Error::Cancelled));
}
