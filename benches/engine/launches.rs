//! Launches per second through the socket, with one caller and with sixteen, on histories of
//! increasing size. The parents are mailboxes, so that no notice is posted; the children run on the
//! scripted host and end at once.

use std::time::{Duration, Instant};

use anyhow::bail;
use asyncagents::client::Client;
use asyncagents::task::launch::Arguments;
use asyncagents::wire::{CallerView, LaunchRequest};
use futures_util::future::try_join_all;

use crate::bare::{self, BareDatabase, Commits};
use crate::history::{self, Histories};
use crate::processes::{Daemon, Host, own_processor};
use crate::table::{Row, Table, median, millis, quantile};
use crate::{Scale, progress};

const MANY: usize = 16;
/// The limit of running tasks per parent: nothing is ever queued.
const PER_PARENT: usize = 10;
const LONGEST_DRAIN: Duration = Duration::from_secs(30);

/// The throughput of all callers in one window.
#[derive(Default)]
struct Sample {
    per_second: f64,
    latencies: Vec<f64>,
    /// Milliseconds of processor time per launch: daemon, host, this program.
    processor: [f64; 3],
    /// Tasks still running when the window closed, and how long until the last one had ended.
    left: u64,
    drained_after: Duration,
}

/// All rounds on one size of history.
#[derive(Default)]
struct Samples {
    one: Vec<Sample>,
    many: Vec<Sample>,
    bare_two: Vec<f64>,
    bare_one: Vec<f64>,
    bare_group: Vec<f64>,
    /// The daemon's RSS in megabytes, after the last round.
    resident: f64,
}

pub(crate) async fn measure(
    scale: &Scale,
    histories: &mut Histories,
    table: &mut Table,
) -> anyhow::Result<()> {
    let fsyncs = bare::fsyncs(histories.folder(), 400)?;
    table.note(format!(
        "launches: fsync here takes {:.2} ms (p50), {:.2} ms (p99); parents are mailboxes",
        median(&fsyncs),
        quantile(&fsyncs, 0.99),
    ));
    let mut all = Vec::new();
    for &present in &scale.present {
        progress(format!("launches with {present} tasks present"));
        all.push((present, sample(scale, histories, present).await?));
    }
    for (present, samples) in &all {
        add(table, *present, samples);
    }
    for (present, samples) in &all {
        explain(table, *present, samples);
    }
    add_flatness(table, &all);
    Ok(())
}

async fn sample(
    scale: &Scale,
    histories: &mut Histories,
    present: usize,
) -> anyhow::Result<Samples> {
    let host = Host::start(&histories.place()?).await?;
    let daemon = Daemon::start(&histories.with(present)?, &host, "").await?;
    let mut bare = BareDatabase::open(&history::database(&histories.with(present)?), present)?;
    let mut samples = Samples::default();
    warm_up(&daemon).await?;
    for round in 0..scale.rounds {
        let window = scale.window;
        let group = Commits::Two { launches: MANY };
        samples.bare_two.push(bare.launches_per_second(Commits::Two { launches: 1 }, window)?);
        samples.one.push(launch_for(window, 1, round, &daemon, &host).await?);
        samples.bare_one.push(bare.launches_per_second(Commits::One, window)?);
        samples.bare_group.push(bare.launches_per_second(group, window)?);
        samples.many.push(launch_for(window, MANY, round, &daemon, &host).await?);
    }
    samples.resident = daemon.process.resident()?;
    daemon.stop().await?;
    Ok(samples)
}

async fn warm_up(daemon: &Daemon) -> anyhow::Result<()> {
    for n in 0..PER_PARENT {
        daemon.client.launch(&request(format!("bench-warm-{n}"))).await?;
    }
    drain(&daemon.client).await.map(|_| ())
}

async fn launch_for(
    window: Duration,
    callers: usize,
    round: usize,
    daemon: &Daemon,
    host: &Host,
) -> anyhow::Result<Sample> {
    let processor = || -> anyhow::Result<[f64; 3]> {
        Ok([daemon.process.processor()?, host.process.processor()?, own_processor()?])
    };
    let (began, before) = (Instant::now(), processor()?);
    let launch = |caller: usize| {
        let client = daemon.client.clone();
        async move {
            let mut latencies = Vec::new();
            while began.elapsed() < window {
                let parent =
                    format!("bench-{callers}-{round}-{caller}-{}", latencies.len() / PER_PARENT);
                let asked = Instant::now();
                client.launch(&request(parent)).await?;
                latencies.push(millis(asked.elapsed()));
            }
            anyhow::Ok(latencies)
        }
    };
    let latencies = try_join_all((0..callers).map(launch)).await?.concat();
    let took = began.elapsed().as_secs_f64();
    let (left, drained_after) = drain(&daemon.client).await?;
    let launches = latencies.len() as f64;
    let after = processor()?;
    Ok(Sample {
        per_second: launches / took,
        processor: std::array::from_fn(|n| (after[n] - before[n]) * 1_000.0 / launches),
        latencies,
        left,
        drained_after,
    })
}

/// Waits until no task is running. Returns how many were, and how long it took.
async fn drain(client: &Client) -> anyhow::Result<(u64, Duration)> {
    let began = Instant::now();
    let mut first = None;
    loop {
        let page = client.tasks(&[("status", "running".into()), ("limit", "1".into())]).await?;
        let left = *first.get_or_insert(page.total);
        if page.total == 0 {
            return Ok((left, began.elapsed()));
        }
        if began.elapsed() > LONGEST_DRAIN {
            bail!("{} tasks do not end", page.total);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn request(parent: String) -> LaunchRequest {
    LaunchRequest {
        caller: CallerView {
            session_id: parent,
            directory: "/".to_owned(),
            ..CallerView::default()
        },
        arguments: Arguments {
            description: Some("say done".to_owned()),
            prompt: Some("say done".to_owned()),
            agent: Some("general".to_owned()),
            ..Arguments::default()
        },
        key: None,
        ..LaunchRequest::default()
    }
}

fn rate(samples: &[Sample]) -> f64 {
    median(&samples.iter().map(|sample| sample.per_second).collect::<Vec<_>>())
}

fn processor(samples: &[Sample]) -> f64 {
    median(&samples.iter().map(|sample| sample.processor[0]).collect::<Vec<_>>())
}

fn add(table: &mut Table, present: usize, samples: &Samples) {
    let mut row = |what: String, figure: f64, limit: f64, least: Option<f64>| {
        let ratio = figure / limit;
        table.add(Row {
            what,
            figure: format!("{figure:.0}/s"),
            limit: format!("{limit:.0}/s"),
            ratio: Some(ratio),
            target: least.map_or(String::new(), |least| format!("≥ {least} of the limit")),
            met: least.map(|least| ratio >= least),
        });
    };
    let (one, many) = (rate(&samples.one), rate(&samples.many));
    row(format!("launch, 1 caller, {present} present"), one, median(&samples.bare_two), Some(0.3));
    row("  beside one commit per launch".to_owned(), one, median(&samples.bare_one), None);
    let what = format!("launch, {MANY} callers, {present} present");
    row(what, many, median(&samples.bare_two), Some(0.5));
    let what = format!("  beside {MANY} launches per commit");
    row(what, many, median(&samples.bare_group), None);
}

fn explain(table: &mut Table, present: usize, samples: &Samples) {
    let launches: usize =
        samples.one.iter().chain(&samples.many).map(|sample| sample.latencies.len()).sum();
    table.note(format!(
        "{present} present: the daemon held {:.1} MB after {launches} launches",
        samples.resident
    ));
    for (callers, samples) in [(1, &samples.one), (MANY, &samples.many)] {
        let latencies: Vec<f64> = samples.iter().flat_map(|s| s.latencies.clone()).collect();
        let middle =
            |of: &dyn Fn(&Sample) -> f64| median(&samples.iter().map(of).collect::<Vec<_>>());
        table.note(format!(
            "{callers} caller(s), {present} present: p50 {:.2} ms, p99 {:.2} ms; processor per task \
             until its end: daemon {:.2} ms, host {:.2} ms, this program {:.2} ms; {:.0} live at \
             the end of a window, gone after {:.0} ms",
            median(&latencies),
            quantile(&latencies, 0.99),
            middle(&|sample| sample.processor[0]),
            middle(&|sample| sample.processor[1]),
            middle(&|sample| sample.processor[2]),
            middle(&|sample| sample.left as f64),
            middle(&|sample| millis(sample.drained_after)),
        ));
    }
}

/// The largest history compared with none; the limit is what the bare loop keeps of its rate. The
/// row of processor time holds also on a shared machine.
fn add_flatness(table: &mut Table, all: &[(usize, Samples)]) {
    let (Some((_, none)), Some((most, largest))) = (all.first(), all.last()) else { return };
    let mut row = |what: String, figure: f64, limit: Option<f64>, target: &str, met: bool| {
        table.add(Row {
            what: format!("{what}, {most} present of 0"),
            figure: format!("{figure:.2}"),
            limit: limit.map_or(String::new(), |limit| format!("{limit:.2}")),
            ratio: limit.map(|limit| figure / limit),
            target: target.to_owned(),
            met: Some(met),
        });
    };
    let bare_one = median(&largest.bare_two) / median(&none.bare_two);
    let bare_many = median(&largest.bare_group) / median(&none.bare_group);
    for (callers, largest, none, limit) in
        [(1, &largest.one, &none.one, bare_one), (MANY, &largest.many, &none.many, bare_many)]
    {
        let kept = rate(largest) / rate(none);
        let what = format!("launches, {callers} caller(s)");
        row(what, kept, Some(limit), "flat: ≥ 0.8", kept >= 0.8);
        let grown = processor(largest) / processor(none);
        let what = format!("daemon's processor per task, {callers} caller(s)");
        row(what, grown, None, "flat: ≤ 1.25", grown <= 1.25);
    }
}
