//! Builds the dashboard with npm and writes the table of its files that `http/assets.rs` embeds.
//!
//! Without npm, or when the build fails, the table is empty and a warning says why: the program is complete
//! without its pages, and `/` then says how to get them. Nothing is built when the sources are those of the last
//! time, so that an ordinary `cargo check` costs nothing.
//!
//! Also has the unwinder linked statically, for a faster start, and relocations packed, for less memory.

#![allow(clippy::disallowed_methods, reason = "a build script is configured by its environment")]

use std::collections::hash_map::DefaultHasher;
use std::fmt::Write;
use std::fs::{self, File};
use std::hash::Hasher;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, io};

const SKIP: &str = "ASYNCAGENTS_SKIP_DASHBOARD";
/// Without the network it fails soon: npm's own limits are several minutes.
const INSTALL: [&str; 7] = [
    "ci",
    "--prefer-offline",
    "--no-audit",
    "--no-fund",
    "--loglevel=error",
    "--fetch-retries=1",
    "--fetch-timeout=30000",
];
/// What the pages are made of, below `dashboard/`.
const SOURCES: [&str; 5] =
    ["index.html", "package.json", "package-lock.json", "vite.config.ts", "src"];

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let dashboard = root.join("dashboard");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed={SKIP}");
    for source in SOURCES {
        println!("cargo:rerun-if-changed=dashboard/{source}");
    }
    let is_skipped = env::var(SKIP).is_ok_and(|value| ["true", "1"].contains(&value.as_str()));
    let files = match is_skipped {
        true => Vec::new(),
        false => build(&dashboard, &out.join("dashboard")).unwrap_or_else(|error| {
            let again = "`touch build.rs` before the next build, which tries again";
            println!("cargo:warning=built without the dashboard: {error}; {again}");
            Vec::new()
        }),
    };
    let table = rust_of(&files);
    fs::write(out.join("dashboard.rs"), table).expect("the build directory can be written");
    link_unwinder_statically();
    pack_relocations();
}

/// Every command of an agent starts this program once, as its guard, and every MCP conversation does: loading
/// `libgcc_s.so` is a tenth of what a start costs. Where the compiler has no static unwinder, or the linker takes the
/// shared one first, nothing changes.
fn link_unwinder_statically() {
    let target = |name: &str| env::var(format!("CARGO_CFG_TARGET_{name}")).unwrap_or_default();
    if (target("OS").as_str(), target("ENV").as_str()) != ("linux", "gnu") {
        return;
    }
    let linker = match env::var("RUSTC_LINKER") {
        Ok(linker) => linker,
        // Which linker rustc takes for another platform is not known here; the `cc` of this one says nothing of it.
        Err(_) if env::var_os("HOST") != env::var_os("TARGET") => return,
        Err(_) => "cc".to_owned(),
    };
    // A compiler that does not find the file prints its name alone.
    let asked = Command::new(linker).arg("-print-file-name=libgcc_eh.a").output();
    let has_it = asked
        .is_ok_and(|asked| Path::new(String::from_utf8_lossy(&asked.stdout).trim()).is_absolute());
    if has_it {
        println!("cargo:rustc-link-lib=static:-bundle=gcc_eh");
    }
}

/// An executable at an address of the loader's choosing has tens of thousands of pointers to relocate when it starts.
/// Packed (RELR), their table is 16 KB instead of 1.2 MB that every start reads and keeps in memory. Loaders know it
/// from glibc 2.36 on, so it is used where the program is built for this machine and this machine has that; a program
/// that was built so does not start on an older system, whose loader then names `GLIBC_ABI_DT_RELR`.
fn pack_relocations() {
    if env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|name| name == "gnu")
        && env::var("CARGO_CFG_TARGET_OS").is_ok_and(|name| name == "linux")
        && env::var_os("HOST") == env::var_os("TARGET")
        && glibc().is_some_and(|version| version >= (2, 36))
    {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// The version of this machine's C library.
fn glibc() -> Option<(u32, u32)> {
    let asked = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let said = String::from_utf8(asked.stdout).ok()?;
    let (major, minor) = said.trim().strip_prefix("glibc ")?.split_once('.')?;
    let minor = minor.split('.').next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// A file of the pages: its path in the address, and where it is.
type Page = (String, PathBuf);

/// Builds the pages, if their sources have changed, and returns copies of the files below `copies`: `dist` may be
/// built again or removed while this build directory is still used.
fn build(dashboard: &Path, copies: &Path) -> io::Result<Vec<Page>> {
    let dist = dashboard.join("dist");
    let wanted = fingerprint(dashboard)?;
    let stamp = dist.join(".stamp");
    let is_built = || fs::read_to_string(&stamp).is_ok_and(|built| built == wanted);
    // Debug build, release build and lints have directories of their own but share this one. What is built needs no
    // lock, so that a tree that cannot be written to serves as well.
    let _lock = match is_built() {
        true => None,
        false => {
            let lock = File::create(dashboard.join(".lock"))?;
            lock.lock()?;
            Some(lock)
        }
    };
    // Perhaps by another one, meanwhile.
    if !is_built() {
        npm(dashboard, &INSTALL)?;
        npm(dashboard, &["run", "--silent", "build"])?;
        fs::write(&stamp, &wanted)?;
    }
    let mut files = Vec::new();
    collect(&dist, &mut files)?;
    files.retain(|file| *file != stamp);
    files.sort();
    files.iter().map(|file| copy(file, &dist, copies)).collect()
}

fn copy(file: &Path, dist: &Path, copies: &Path) -> io::Result<Page> {
    let below = file.strip_prefix(dist).map_err(io::Error::other)?;
    let copy = copies.join(below);
    fs::create_dir_all(copy.parent().unwrap_or(copies))?;
    fs::copy(file, &copy)?;
    Ok((format!("/{}", below.display()), copy))
}

fn npm(dashboard: &Path, arguments: &[&str]) -> io::Result<()> {
    // Unchanged packages are not installed again: that takes longer than everything else here.
    let lock = dashboard.join("package-lock.json");
    let installed = dashboard.join("node_modules/.installed");
    let is_install = arguments[0] == "ci";
    if is_install && fs::read(&installed).ok() == Some(fs::read(&lock)?) {
        return Ok(());
    }
    let run = Command::new("npm").args(arguments).current_dir(dashboard).output();
    let run = run.map_err(|error| io::Error::other(format!("npm cannot be run ({error})")))?;
    if !run.status.success() {
        let said = [run.stdout, run.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let first = said.lines().filter(|line| !line.trim().is_empty()).take(3);
        let first: Vec<&str> = first.collect();
        let command = arguments[..arguments.len().min(3)].join(" ");
        return Err(io::Error::other(format!("`npm {command}` failed: {}", first.join(" | "))));
    }
    if is_install {
        fs::copy(lock, installed)?;
    }
    Ok(())
}

/// Changes whenever a source does.
fn fingerprint(dashboard: &Path) -> io::Result<String> {
    let mut files = Vec::new();
    for source in SOURCES {
        collect(&dashboard.join(source), &mut files)?;
    }
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in files {
        hasher.write(file.as_os_str().as_encoded_bytes());
        hasher.write(&fs::read(file)?);
    }
    Ok(format!("{:016x}", hasher.finish()))
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    if !path.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        collect(&entry?.path(), files)?;
    }
    Ok(())
}

/// `[(path in the address, contents)]` as Rust.
fn rust_of(files: &[Page]) -> String {
    let mut text = "&[\n".to_owned();
    for (path, file) in files {
        writeln!(text, "    ({path:?}, include_bytes!({file:?})),").expect("memory takes it");
    }
    text + "]\n"
}
