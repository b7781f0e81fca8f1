//! No path leads out of the workspace without a permission, and a permission is for one place.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::Desk;
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

fn trap() -> Desk {
    let desk = Desk::with(&[("inner/own.txt", "mine")]);
    let outside = desk.top.join("outside");
    fs::create_dir(outside.join("deep")).unwrap();
    fs::write(outside.join("secret.txt"), "secret").unwrap();
    fs::write(outside.join("deep/secret.txt"), "secret").unwrap();
    desk.link("file", outside.join("secret.txt"));
    desk.link("relative", "../outside/secret.txt");
    desk.link("chain", "inner/../relative");
    desk.link("dangling", outside.join("new.txt"));
    desk.link("dangling-relative", "../outside/new.txt");
    desk.link("directory", &outside);
    desk.link("inner/directory", "../../outside");
    desk.link("inner/up", "..");
    desk
}

/// Everything outside, by path.
fn outside(desk: &Desk) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut ahead = vec![desk.top.join("outside")];
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
    let desk = trap();
    let before = outside(&desk);
    let secret = desk.top.join("outside/secret.txt");
    let absolute = |path: &str| desk.top.join(path).display().to_string();
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
        let leads_to = desk.top.join(leads_to).display().to_string();
        let leads_to =
            leads_to.strip_suffix('/').filter(|path| !path.is_empty()).unwrap_or(&leads_to);
        for (name, arguments) in calls(path) {
            let said = leaves(name, &arguments, &desk.context);
            assert_eq!(said, Some(format!("external_directory {leads_to}")), "{name} {path}");
            let result = desk.run(name, arguments).await;
            let refused = matches!(&result, Err(Error::Outside { path, .. }) if path == leads_to);
            assert!(refused, "{name} {path}: {result:?}");
        }
    }
    assert_eq!(outside(&desk), before);
    assert!(secret.exists() && !desk.top.join("workspace-not").exists());
}

#[tokio::test]
async fn what_stays_inside_needs_no_permission() {
    let desk = trap();
    desk.link("to-own", "inner/own.txt");
    desk.link("to-inner", desk.path("inner"));
    desk.link("to-missing", "inner/later.txt");
    for path in [
        "inner/own.txt",
        "./inner//./own.txt",
        "inner/../inner/own.txt",
        "../workspace/inner/own.txt",
        desk.path("inner/own.txt").to_str().unwrap(),
        "to-own",
        "to-inner/own.txt",
        "inner/up/inner/own.txt",
        "directory/../workspace/inner/own.txt",
    ] {
        assert_eq!(leaves("read", &json!({ "path": path }), &desk.context), None, "{path}");
        desk.check("read", json!({ "path": path }), "     1\tmine\n").await;
        let wrote = "replaced `inner/own.txt` (1 line)";
        desk.check("write", json!({ "path": path, "content": "mine" }), wrote).await;
    }
    assert!(desk.path("to-own").is_symlink(), "links stay links");
    let made = "created `inner/later.txt` (1 line)";
    desk.check("write", json!({ "path": "to-missing", "content": "new" }), made).await;
    assert_eq!(desk.content("inner/later.txt"), "new");

    desk.link("circle", "circle");
    let text = desk.call("read", json!({ "path": "circle" })).await;
    assert!(text.starts_with("error: cannot open `circle`: Too many"), "{text}");
    for (name, arguments) in
        [("bash", json!({ "command": "cat /etc/passwd" })), ("todo", json!({}))]
    {
        assert_eq!(leaves(name, &arguments, &desk.context), None);
    }
}

#[tokio::test]
async fn searching_does_not_follow_links() {
    let desk = trap();
    desk.check("grep", json!({ "pattern": "secret" }), "no matches").await;
    desk.check("glob", json!({ "pattern": "secret.txt" }), "no files found").await;
    desk.check("glob", json!({ "pattern": "**/own.txt" }), "inner/own.txt").await;
    desk.check("list", json!({ "path": "inner" }), "directory -> ../../outside\nown.txt\nup -> ..")
        .await;
}

#[tokio::test]
async fn a_permission_is_for_the_place_that_was_shown() {
    let mut desk = trap();
    let path = desk.top.join("outside/secret.txt").display().to_string();
    let arguments = json!({ "path": "file" });
    desk.context.may_leave = leaves("read", &arguments, &desk.context);
    desk.check("read", arguments.clone(), "     1\tsecret\n").await;
    let edited = format!("edited `{path}` in 1 place, first in line 1");
    desk.check("edit", json!({ "path": "file", "old": "secret", "new": "open" }), &edited).await;

    fs::remove_file(desk.path("file")).unwrap();
    desk.link("file", desk.top.join("outside/deep/secret.txt"));
    assert!(matches!(desk.run("read", arguments).await, Err(Error::Outside { .. })));

    desk.context.may_leave = Some(format!("external_directory {}/outside", desk.top.display()));
    let found = format!("{0}/outside/deep/secret.txt\n{0}/outside/secret.txt", desk.top.display());
    desk.check("glob", json!({ "path": "directory", "pattern": "*" }), &found).await;
    let missing = json!({ "path": "../outside/secre.txt" });
    desk.context.may_leave = leaves("read", &missing, &desk.context);
    let text = desk.call("read", missing).await;
    assert!(text.ends_with("does not exist; `list` and `glob` show what is there"), "{text}");
}

/// While a directory and a link outside change places all the time, and a file and a link too.
#[cfg(target_os = "linux")]
#[test]
fn nothing_swapped_in_meanwhile_leads_outside() {
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::{CWD, RenameFlags};

    let desk = Desk::with(&[("swap/f.txt", "mine"), ("swap/sub/f.txt", "mine"), ("leaf", "mine")]);
    let target = desk.top.join("outside");
    fs::create_dir(target.join("sub")).unwrap();
    fs::write(target.join("f.txt"), "stolen").unwrap();
    fs::write(target.join("stolen.txt"), "stolen").unwrap();
    fs::write(target.join("sub/f.txt"), "stolen").unwrap();
    desk.link("other", &target);
    let before = outside(&desk);

    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = AtomicBool::new(false);
    let flip = || {
        let (swap, other) = (desk.path("swap"), desk.path("other"));
        let (aside, leaf) = (desk.top.join("aside"), desk.path("leaf"));
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
                if let Ok(output) = desk.run(name, arguments.clone()).await {
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
    assert_eq!(outside(&desk), before);
}

#[tokio::test]
async fn kept_output_may_be_read_but_not_written() {
    let desk = Desk::new();
    fs::create_dir(&desk.context.overflow).unwrap();
    let path = desk.context.overflow.join("kept.txt");
    fs::write(&path, "kept").unwrap();
    for (name, arguments) in calls(path.to_str().unwrap()) {
        let outside = leaves(name, &arguments, &desk.context).is_some();
        assert_eq!(outside, matches!(name, "edit" | "write"), "{name}");
    }
    desk.check("read", json!({ "path": path }), "     1\tkept\n").await;
}

#[tokio::test]
async fn in_a_home_our_own_files_are_closed_and_credentials_need_a_permission() {
    let files = [(".ssh/id", "secret"), (".store/token", "secret"), ("own.txt", "secret")];
    let mut desk = Desk::with(&files);
    let home = desk.context.workspace.root().to_owned();
    desk.context.cell.sandbox = Sandbox::new(Settings {
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
        assert_eq!(desk.run(name, arguments.clone()).await, Err(refused), "{name}");
        assert_eq!(leaves(name, &arguments, &desk.context), Some(asked.clone()), "{name}");
    }
    for (name, arguments) in calls(".store/token") {
        let refused = Error::Own { path: ".store/token".to_owned() };
        assert_eq!(desk.run(name, arguments.clone()).await, Err(refused), "{name}");
        assert_eq!(leaves(name, &arguments, &desk.context), None, "{name}");
    }
    desk.check("grep", json!({ "pattern": "secret" }), "own.txt:1: secret").await;
    desk.check("glob", json!({ "pattern": "**" }), "own.txt").await;
    desk.context.may_leave = Some(asked);
    desk.check("grep", json!({ "path": ".ssh/id", "pattern": "." }), ".ssh/id:1: secret").await;
}
