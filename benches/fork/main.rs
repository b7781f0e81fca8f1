//! Measures forking, from the host's JSON to what a child inherits, compared with a typed
//! `serde_json` parse of the same bytes in the same run, in processor time. A slow figure does not
//! fail the run; it is printed as a MISS.
//!
//! `cargo bench --bench fork [-- [--quick] [--large]]`

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a table is the point of this")]

mod parent;
mod parse;

#[path = "../engine/table.rs"]
mod table;

use std::hint::black_box;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use asyncagents::fork;
use rustix::time::{ClockId, clock_gettime};

use parent::Compaction;
use table::{Row, Table, median, millis, quantile};

/// Megabytes of JSON.
const SIZES: [f64; 2] = [2.4, 24.0];
const LARGE: f64 = 239.0;

const MOST_TIMES_THE_PARSE: f64 = 2.0;
const MOST_TIMES_THE_INPUT: f64 = 1.5;
/// The factor by which ten times the input may exceed ten times the time: it no longer fits into
/// the processor's caches.
const MOST_BEYOND_LINEAR: f64 = 1.3;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let given = |word: &str| arguments.iter().any(|argument| argument == word);
    if let [word, file] = arguments.as_slice()
        && word == "--inherit"
    {
        return inherit_alone(file);
    }
    // `cargo test --benches` runs this program too, where timings mean nothing.
    if !given("--bench") {
        return Ok(());
    }
    let mut sizes = if given("--quick") { SIZES[..1].to_vec() } else { SIZES.to_vec() };
    sizes.extend(given("--large").then_some(LARGE));

    let folder = tempfile::Builder::new().prefix("f").tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let file = folder.path().join("parent.json");
    let mut table = Table::default();
    let mut per_megabyte: Vec<(Compaction, f64, f64)> = Vec::new();
    for &megabytes in &sizes {
        for compaction in Compaction::ALL {
            let what = format!("{megabytes} MB, compaction: {}", compaction.name());
            eprintln!("… {what}");
            let json = parent::write(megabytes, compaction);
            std::fs::write(&file, &json)?;
            let took = time(&json, megabytes, &what, &mut table)?;
            per_megabyte.push((compaction, megabytes, took / json.len() as f64));
            weigh(&file, json.len(), &what, &mut table)?;
        }
    }
    for compaction in Compaction::ALL {
        let of = |size: f64| per_megabyte.iter().find(|(c, s, _)| (*c, *s) == (compaction, size));
        for pair in sizes.windows(2) {
            let (Some((.., small)), Some((.., large))) = (of(pair[0]), of(pair[1])) else {
                continue;
            };
            let beyond = large / small;
            table.add(Row {
                what: format!(
                    "time per byte, {} beside {} MB, {}",
                    pair[1],
                    pair[0],
                    compaction.name()
                ),
                figure: String::new(),
                limit: String::new(),
                ratio: Some(beyond),
                target: format!("linear: ≤ {MOST_BEYOND_LINEAR}×"),
                met: Some(beyond <= MOST_BEYOND_LINEAR),
            });
        }
    }
    let load = std::fs::read_to_string("/proc/loadavg")?;
    let load = load.split_whitespace().next().unwrap_or_default();
    table.note(format!("the limit is the parse, or the input; load after it {load}"));
    println!("{table}");
    Ok(())
}

/// Interleaved, so that both see the same background load.
fn time(json: &str, megabytes: f64, what: &str, table: &mut Table) -> anyhow::Result<f64> {
    let rounds = ((600.0 / megabytes) as usize).clamp(7, 41);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        ours.push(millis(timed(|| fork::inherit(json))?));
        theirs.push(millis(timed(|| parse::messages(json))?));
    }
    // The minimum: slower samples met a cold cache or another process.
    let (figure, limit) = (quantile(&ours, 0.0), quantile(&theirs, 0.0));
    let medians = median(&ours) / median(&theirs);
    table.add(Row {
        what: format!("context from {what}"),
        figure: format!("{figure:.2} ms"),
        limit: format!("{limit:.2} ms"),
        ratio: Some(figure / limit),
        target: format!("≤ {MOST_TIMES_THE_PARSE}× the parse (medians {medians:.2}×)"),
        met: Some(figure / limit <= MOST_TIMES_THE_PARSE),
    });
    Ok(figure)
}

fn timed<T, E: std::error::Error + Send + Sync + 'static>(
    work: impl FnOnce() -> Result<T, E>,
) -> anyhow::Result<Duration> {
    let began = on_processor();
    black_box(work()?);
    Ok(on_processor() - began)
}

/// The processor time of this thread, without the time it was preempted.
fn on_processor() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The peak memory of a separate process, including the input.
fn weigh(
    file: &std::path::Path,
    bytes: usize,
    what: &str,
    table: &mut Table,
) -> anyhow::Result<()> {
    let child = Command::new(std::env::current_exe()?).arg("--inherit").arg(file).output()?;
    anyhow::ensure!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
    let peak: f64 = String::from_utf8(child.stdout)?.trim().parse()?;
    let input = bytes as f64 / 1e6;
    table.add(Row {
        what: format!("memory at most, {what}"),
        figure: format!("{peak:.1} MB"),
        limit: format!("{input:.1} MB"),
        ratio: Some(peak / input),
        target: format!("≤ {MOST_TIMES_THE_INPUT}× the input, which is in it"),
        met: Some(peak / input <= MOST_TIMES_THE_INPUT),
    });
    Ok(())
}

/// Prints by how many megabytes reading a file and forking it raised the peak.
fn inherit_alone(file: &str) -> anyhow::Result<()> {
    let before = peak()?;
    let json = std::fs::read_to_string(file)?;
    black_box(fork::inherit(&json)?);
    println!("{}", peak()? - before);
    Ok(())
}

/// The peak memory of this process so far, in megabytes.
fn peak() -> anyhow::Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("VmHWM")?;
    let kilobytes: f64 = line.trim_end_matches("kB").trim().parse()?;
    Ok(kilobytes * 1_024.0 / 1e6)
}
