//! Measures the engine: the release binary as a daemon, the scripted host as a second process, and
//! each figure beside its limit on this machine, taken in the same run. A slow figure does not fail
//! the run; it is printed as a MISS.
//!
//! `cargo bench --bench engine [-- [--quick] [--large] [launches] [notices] [memory] [start]
//! [api] [search] [opencode] [mcp] [commands] [cli]]`; `search` is a part of `api`, alone.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a table is the point of this")]

mod answers;
mod api;
mod bare;
mod cli;
mod commands;
mod history;
mod launches;
mod load;
mod mcp;
mod memory;
mod notices;
mod opencode;
mod processes;
mod rows;
mod search;
mod sessions;
mod start;
#[path = "../../tests/it/support/opencode/mod.rs"]
#[allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "the tests use all of it")]
mod stub;
mod table;
mod web;
#[path = "../../tests/it/support/world.rs"]
#[allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "the tests use all of it")]
mod world;

use std::time::{Duration, Instant};

use history::Histories;
use table::Table;

/// The sizes and repetitions of one run.
struct Scale {
    /// The numbers of ended tasks in the histories that daemons start with.
    present: Vec<usize>,
    present_for_notices: usize,
    present_for_api: Vec<usize>,
    rounds: usize,
    window: Duration,
    single_ends: usize,
    tool_calls: usize,
    bursts: usize,
    starts: usize,
    commands: usize,
}

const FULL: fn() -> Scale = || Scale {
    present: vec![0, 1_000, 10_000, 100_000],
    present_for_notices: 10_000,
    present_for_api: vec![1_000, 100_000],
    rounds: 7,
    window: Duration::from_millis(500),
    single_ends: 150,
    tool_calls: 3_000,
    bursts: 7,
    starts: 15,
    commands: 200,
};

const QUICK: fn() -> Scale = || Scale {
    present: vec![0, 2_000],
    present_for_notices: 1_000,
    present_for_api: vec![1_000, 2_000],
    rounds: 1,
    window: Duration::from_millis(300),
    single_ends: 20,
    tool_calls: 500,
    bursts: 2,
    starts: 3,
    commands: 20,
};

const LARGE: fn() -> Scale = || Scale {
    present: vec![0, 1_000_000],
    present_for_api: vec![1_000, 100_000, 1_000_000],
    ..FULL()
};

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let bare = arguments.iter().find_map(|argument| argument.strip_prefix(web::ARGUMENT));
    if let Some(descriptions) = bare {
        return web::serve(descriptions.trim_start_matches('=').parse()?);
    }
    if arguments.iter().any(|argument| argument == mcp::ARGUMENT) {
        return mcp::serve_nothing();
    }
    let given = |word: &str| arguments.iter().any(|argument| argument == word);
    // `cargo test --benches` runs this program too, where timings mean nothing.
    if !given("--bench") {
        return Ok(());
    }
    let sections = [
        "launches", "notices", "memory", "start", "api", "search", "opencode", "mcp", "commands",
        "answers", "cli",
    ];
    let all = !sections.into_iter().any(given);
    let wanted = |section: &str| all || given(section);
    let scale = match (given("--quick"), given("--large")) {
        (true, _) => QUICK(),
        (false, true) => LARGE(),
        (false, false) => FULL(),
    };

    let (began, load) = (Instant::now(), load_average()?);
    let mut histories = Histories::new()?;
    let mut table = Table::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        if wanted("launches") {
            launches::measure(&scale, &mut histories, &mut table).await?;
        }
        if wanted("notices") {
            notices::measure(&scale, &mut histories, &mut table).await?;
        }
        if wanted("memory") {
            memory::measure(&scale, &mut histories, &mut table).await?;
        }
        if wanted("start") {
            start::measure(&scale, &mut histories, &mut table).await?;
        }
        if wanted("api") {
            api::measure(&scale, &mut histories, &mut table).await?;
        } else if wanted("search") {
            search::measure(&scale, &mut histories, &mut table).await?;
        }
        if wanted("mcp") {
            mcp::measure(&scale, &mut histories, &mut table).await?;
        }
        if wanted("commands") {
            commands::measure(&scale, &mut table).await?;
        }
        if wanted("cli") {
            cli::measure(&scale, &mut histories, &mut table).await?;
        }
        if wanted("answers") {
            answers::measure(&mut table).await?;
        }
        anyhow::Ok(())
    })?;
    if wanted("opencode") {
        // The stub OpenCode server runs in this process, on a runtime of its own.
        let beside = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        beside.block_on(opencode::measure(&scale, &mut histories, &mut table))?;
    }
    println!("{table}");
    println!(
        "measured in {:.0} s; load before {load}, after {}. Above the number of processors others \
         take part, and limits suffer more than figures.",
        began.elapsed().as_secs_f64(),
        load_average()?,
    );
    Ok(())
}

/// The average of the last minute.
fn load_average() -> anyhow::Result<String> {
    let text = std::fs::read_to_string("/proc/loadavg")?;
    Ok(text.split_whitespace().next().unwrap_or_default().to_owned())
}

fn progress(what: impl std::fmt::Display) {
    eprintln!("… {what}");
}
