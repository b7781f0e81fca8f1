//! No path leads out of the workspace without a permission, and a permission is for one place.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::ToolFixture;
use crate::agent::tools::{Error, leaves};
use crate::sandbox::{Caches, Choice, Limits, Network, Sandbox, Settings, UserPlaces};

/// A call of each tool that takes a path.
fn calls(path: &str) -> Vec<(&'static str, Value)> {
    vec![
        ("read", json!({ "path": path })),
        ("list", json!({ "path": path })),
        ("glob", json!({ "path": path, "pattern": "*" })),
        ("grep", json!({ "path": path, "pattern": "." })),
        ("edit", json!({ "path": path, "old": "secret", "new": "changed" })),
        ("write", json!({ "path": path, "content": "changed" })),
    ]
}

fn trap() -> ToolFixture {
    let fixture = ToolFixture::with(&[("inner/own.txt", "mine")]);
    let outside = fixture.top.join("outside");
    fs::create_dir(outside.join("deep")).unwrap();
    fs::write(outside.join("secret.txt"), "secret").unwrap();
    fs::write(outside.join("deep/secret.txt"), "secret").unwrap();
    fixture.link("file", outside.join("secret.txt"));
    fixture.link("relative", "../outside/secret.txt");
    fixture.link("chain", "inner/../relative");
    fixture.link("dangling", outside.join("new.txt"));
    fixture.link("dangling-relative", "../outside/new.txt");
    fixture.link("directory", &outside);
    fixture.link("inner/directory", "../../outside");
    fixture.link("inner/up", "..");
    fixture
}

/// Everything outside, by path.
fn outside(fixture: &ToolFixture) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut ahead = vec![fixture.top.join("outside")];
    while let Some(directory) = ahead.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                ahead.push(path.clone());
                found.insert(path, Vec::new());
            } else {
                found.insert(path.clone(), fs::read(path).unwrap());
            }
        }
    }
    found
}

#[tokio::test]
async fn no_path_leads_outside_without_a_permission() {
    let fixture = trap();
    let before = outside(&fixture);
    let secret = fixture.top.join("outside/secret.txt");
    let absolute = |path: &str| fixture.top.join(path).display().to_string();
    for (path, leads_to) in [
        ("..", ""),
        ("/", "/"),
        ("../outside", "outside"),
        ("../outside/secret.txt", "outside/secret.txt"),
        ("inner/../../outside/secret.txt", "outside/secret.txt"),
        ("missing/../../outside/secret.txt", "outside/secret.txt"),
        ("inner/up/../outside/new.txt", "outside/new.txt"),
        (&absolute("outside/secret.txt"), "outside/secret.txt"),
        (&absolute("workspace/../outside/secret.txt"), "outside/secret.txt"),
        (&absolute("workspace-not"), "workspace-not"),
        ("file", "outside/secret.txt"),
        ("relative", "outside/secret.txt"),
        ("chain", "outside/secret.txt"),
        ("dangling", "outside/new.txt"),
        ("dangling-relative", "outside/new.txt"),
        ("directory", "outside"),
        ("directory/", "outside"),
        ("directory/secret.txt", "outside/secret.txt"),
        ("directory/new/new.txt", "outside/new/new.txt"),
        ("directory/deep/../secret.txt", "outside/secret.txt"),
        ("directory/../outside/deep", "outside/deep"),
        ("inner/directory/secret.txt", "outside/secret.txt"),
    ] {
        let leads_to = fixture.top.join(leads_to).display().to_string();
        let leads_to =
            leads_to.strip_suffix('/').filter(|path| !path.is_empty()).unwrap_or(&leads_to);
        for (name, arguments) in calls(path) {
            let said = leaves(name, &arguments, &fixture.context);
            assert_eq!(said, Some(format!("external_directory {leads_to}")), "{name} {path}");
            let result = fixture.run(name, arguments).await;
            let refused = matches!(&result, Err(Error::Outside { path, .. }) if path == leads_to);
            assert!(refused, "{name} {path}: {result:?}");
        }
    }
    assert_eq!(outside(&fixture), before);
    assert!(secret.exists() && !fixture.top.join("workspace-not").exists());
}

#[tokio::test]
async fn paths_that_stay_inside_the_workspace_need_no_permission() {
    let fixture = trap();
    fixture.link("to-own", "inner/own.txt");
    fixture.link("to-inner", fixture.path("inner"));
    fixture.link("to-missing", "inner/later.txt");
    for path in [
        "inner/own.txt",
        "./inner//./own.txt",
        "inner/../inner/own.txt",
        "../workspace/inner/own.txt",
        fixture.path("inner/own.txt").to_str().unwrap(),
        "to-own",
        "to-inner/own.txt",
        "inner/up/inner/own.txt",
        "directory/../workspace/inner/own.txt",
    ] {
        assert_eq!(leaves("read", &json!({ "path": path }), &fixture.context), None, "{path}");
        fixture.check("read", json!({ "path": path }), "     1\tmine\n").await;
        let wrote = "replaced `inner/own.txt` (1 line)";
        fixture.check("write", json!({ "path": path, "content": "mine" }), wrote).await;
    }
    assert!(fixture.path("to-own").is_symlink(), "links stay links");
    let made = "created `inner/later.txt` (1 line)";
    fixture.check("write", json!({ "path": "to-missing", "content": "new" }), made).await;
    assert_eq!(fixture.content("inner/later.txt"), "new");

    fixture.link("circle", "circle");
    let text = fixture.call("read", json!({ "path": "circle" })).await;
    assert!(text.starts_with("error: cannot open `circle`: Too many"), "{text}");
    for (name, arguments) in
        [("bash", json!({ "command": "cat /etc/passwd" })), ("todo", json!({}))]
    {
        assert_eq!(leaves(name, &arguments, &fixture.context), None);
    }
}

#[tokio::test]
async fn searching_does_not_follow_links() {
    let fixture = trap();
    fixture.check("grep", json!({ "pattern": "secret" }), "no matches").await;
    fixture.check("glob", json!({ "pattern": "secret.txt" }), "no files found").await;
    fixture.check("glob", json!({ "pattern": "**/own.txt" }), "inner/own.txt").await;
    fixture
        .check("list", json!({ "path": "inner" }), "directory -> ../../outside\nown.txt\nup -> ..")
        .await;
}

#[tokio::test]
async fn a_permission_covers_only_the_path_that_was_shown() {
    let mut fixture = trap();
    let path = fixture.top.join("outside/secret.txt").display().to_string();
    let arguments = json!({ "path": "file" });
    fixture.context.may_leave = leaves("read", &arguments, &fixture.context);
    fixture.check("read", arguments.clone(), "     1\tsecret\n").await;
    let edited = format!("edited `{path}` in 1 place, first in line 1");
    fixture.check("edit", json!({ "path": "file", "old": "secret", "new": "open" }), &edited).await;

    fs::remove_file(fixture.path("file")).unwrap();
    fixture.link("file", fixture.top.join("outside/deep/secret.txt"));
    assert!(matches!(fixture.run("read", arguments).await, Err(Error::Outside { .. })));

    fixture.context.may_leave =
        Some(format!("external_directory {}/outside", fixture.top.display()));
    let found =
        format!("{0}/outside/deep/secret.txt\n{0}/outside/secret.txt", fixture.top.display());
    fixture.check("glob", json!({ "path": "directory", "pattern": "*" }), &found).await;
    let missing = json!({ "path": "../outside/secre.txt" });
    fixture.context.may_leave = leaves("read", &missing, &fixture.context);
    let text = fixture.call("read", missing).await;
    assert!(text.ends_with("does not exist; `list` and `glob` show what is there"), "{text}");
}

/// While a directory and a link outside change places all the time, and a file and a link too.
#[cfg(target_os = "linux")]
#[test]
fn links_swapped_in_during_a_call_do_not_lead_outside() {
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::{CWD, RenameFlags};

    let fixture =
        ToolFixture::with(&[("swap/f.txt", "mine"), ("swap/sub/f.txt", "mine"), ("leaf", "mine")]);
    let target = fixture.top.join("outside");
    fs::create_dir(target.join("sub")).unwrap();
    fs::write(target.join("f.txt"), "stolen").unwrap();
    fs::write(target.join("stolen.txt"), "stolen").unwrap();
    fs::write(target.join("sub/f.txt"), "stolen").unwrap();
    fixture.link("other", &target);
    let before = outside(&fixture);

    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = AtomicBool::new(false);
    let flip = || {
        let (swap, other) = (fixture.path("swap"), fixture.path("other"));
        let (aside, leaf) = (fixture.top.join("aside"), fixture.path("leaf"));
        while !stop.load(Ordering::Relaxed) {
            rustix::fs::renameat_with(CWD, &swap, CWD, &other, RenameFlags::EXCHANGE).unwrap();
            symlink(target.join("f.txt"), &aside).unwrap();
            fs::rename(&aside, &leaf).unwrap();
            fs::write(&aside, "mine").unwrap();
            fs::rename(&aside, &leaf).unwrap();
        }
    };
    let rounds = async || {
        for (name, arguments) in [
            ("read", json!({ "path": "swap/f.txt" })),
            ("read", json!({ "path": "swap/sub/f.txt" })),
            ("read", json!({ "path": "leaf" })),
            ("list", json!({ "path": "swap" })),
            ("glob", json!({ "pattern": "stolen.txt" })),
            ("glob", json!({ "pattern": "*", "path": "swap" })),
            ("grep", json!({ "pattern": "." })),
            ("grep", json!({ "pattern": ".", "path": "swap/sub" })),
            ("grep", json!({ "pattern": ".", "path": "leaf" })),
            ("edit", json!({ "path": "swap/f.txt", "old": "stolen", "new": "changed" })),
            ("edit", json!({ "path": "leaf", "old": "stolen", "new": "changed" })),
            ("write", json!({ "path": "swap/f.txt", "content": "mine" })),
            ("write", json!({ "path": "swap/new/new.txt", "content": "mine" })),
            ("write", json!({ "path": "leaf", "content": "mine" })),
        ] {
            for _ in 0..300 {
                if let Ok(output) = fixture.run(name, arguments.clone()).await {
                    let text = output.text;
                    assert!(!text.contains("stolen"), "{name} {arguments}: {text}");
                }
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(flip);
        let _stop = Stop(&stop);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(rounds());
    });
    assert_eq!(outside(&fixture), before);
}

#[tokio::test]
async fn stored_output_may_be_read_but_not_written() {
    let fixture = ToolFixture::new();
    fs::create_dir(&fixture.context.overflow).unwrap();
    let path = fixture.context.overflow.join("kept.txt");
    fs::write(&path, "kept").unwrap();
    for (name, arguments) in calls(path.to_str().unwrap()) {
        let outside = leaves(name, &arguments, &fixture.context).is_some();
        assert_eq!(outside, matches!(name, "edit" | "write"), "{name}");
    }
    fixture.check("read", json!({ "path": path }), "     1\tkept\n").await;
}

#[tokio::test]
async fn in_a_home_our_own_files_are_closed_and_credentials_need_a_permission() {
    let files = [(".ssh/id", "secret"), (".store/token", "secret"), ("own.txt", "secret")];
    let mut fixture = ToolFixture::with(&files);
    let home = fixture.context.workspace.root().to_owned();
    fixture.context.session_sandbox.sandbox = Sandbox::new(Settings {
        choice: Choice::Off,
        program: PathBuf::new(),
        network: Network::On,
        readable: Vec::new(),
        writable: Vec::new(),
        caches: Caches::Readable,
        limits: Limits::default(),
        user: UserPlaces { home: Some(home.clone()), ..UserPlaces::default() },
        own: vec![home.join(".store")],
    });
    let asked = format!("credentials {}", home.join(".ssh/id").display());
    for (name, arguments) in calls(".ssh/id") {
        let refused = Error::Credentials { path: ".ssh/id".to_owned() };
        assert_eq!(fixture.run(name, arguments.clone()).await, Err(refused), "{name}");
        assert_eq!(leaves(name, &arguments, &fixture.context), Some(asked.clone()), "{name}");
    }
    for (name, arguments) in calls(".store/token") {
        let refused = Error::Own { path: ".store/token".to_owned() };
        assert_eq!(fixture.run(name, arguments.clone()).await, Err(refused), "{name}");
        assert_eq!(leaves(name, &arguments, &fixture.context), None, "{name}");
    }
    fixture.check("grep", json!({ "pattern": "secret" }), "own.txt:1: secret").await;
    fixture.check("glob", json!({ "pattern": "**" }), "own.txt").await;
    fixture.context.may_leave = Some(asked);
    fixture.check("grep", json!({ "path": ".ssh/id", "pattern": "." }), ".ssh/id:1: secret").await;
}
