//! The status API compared with a bare axum server that sends the same number of bytes.

use std::path::Path;
use std::time::Instant;

use asyncagents::clock::Clock;
use asyncagents::store::Store;
use asyncagents::wire::{CallerView, ClearRequest};
use rusqlite::Connection as Database;

use crate::history::{Histories, database};
use crate::load::{self, Connection};
use crate::processes::{Daemon, Host, own_processor};
use crate::table::{Row, Table, median, millis};
use crate::web::BareServer;
use crate::{Scale, progress, rows, search};

const SHARE: f64 = 0.4;
const SHARE_OF_EVENTS: f64 = 0.5;
const MOST_MILLIS_TO_START: f64 = 200.0;
const MOST_MEGABYTES: f64 = 40.0;
const MOST_MEGABYTES_FOR_SNAPSHOTS: f64 = 100.0;

/// Changes committed at once (a parent's list is cleared), fewer than a client may lag behind.
const BURST: usize = 900;

pub(crate) async fn measure(
    scale: &Scale,
    histories: &mut Histories,
    table: &mut Table,
) -> anyhow::Result<()> {
    let largest = scale.present_for_api.last().copied().unwrap_or(0);
    let bare = BareServer::start(largest)?;
    let host = Host::start(&histories.place()?).await?;
    for &present in &scale.present_for_api {
        progress(format!("the status API with {present} tasks present"));
        let (daemon, port) = Daemon::open(&histories.with(present)?, &host).await?;
        let started = millis(daemon.ready_after);
        pages(scale, (&bare, &daemon, port), present, table).await?;
        search::compare(scale, (&bare, &daemon, port), present, table).await?;
        bounded(
            table,
            format!("start → ready with the API, {present} present"),
            started,
            "ms",
            MOST_MILLIS_TO_START,
        );
        let resident = daemon.process.resident()?;
        bounded(
            table,
            format!("memory after that, {present} present"),
            resident,
            "MB",
            MOST_MEGABYTES,
        );
        daemon.stop().await?;
    }
    snapshots(&histories.with(largest.min(100_000))?, &host, table).await?;
    for clients in [50, 200, 1_000] {
        progress(format!("{clients} clients of the event stream"));
        let home = histories.with(1_000)?;
        events(scale, &bare, (&home, &host), clients, table).await?;
    }
    Ok(())
}

fn bounded(table: &mut Table, what: String, figure: f64, unit: &str, most: f64) {
    table.add(Row {
        what,
        figure: format!("{figure:.1} {unit}"),
        limit: String::new(),
        ratio: None,
        target: format!("≤ {most} {unit}"),
        met: Some(figure <= most),
    });
}

async fn pages(
    scale: &Scale,
    servers: (&BareServer, &Daemon, u16),
    present: usize,
    table: &mut Table,
) -> anyhow::Result<()> {
    let middle = format!("/v1/tasks?offset={}", present / 2);
    let questions = [
        "/v1/tasks",
        "/v1/tasks?status=completed",
        "/v1/tasks?agent=explore",
        "/v1/tasks?status=completed&agent=explore",
        middle.as_str(),
        "/v1/stats",
        "/v1/health",
    ];
    for question in questions {
        compare(scale, servers, (question, present), table).await?;
    }
    Ok(())
}

async fn compare(
    scale: &Scale,
    servers: (&BareServer, &Daemon, u16),
    (question, present): (&str, usize),
    table: &mut Table,
) -> anyhow::Result<()> {
    let size = Connection::open(servers.2).await?.get(question).await?;
    let rates = side_by_side(scale, servers, question, &format!("/body/{size}")).await?;
    let Rates { ours: figure, theirs: limit, .. } = rates;
    table.add(Row {
        what: format!("{question}, {present} present, {size} bytes"),
        figure: format!("{figure:.0}/s"),
        limit: format!("{limit:.0}/s"),
        ratio: Some(figure / limit),
        target: format!("≥ {SHARE}"),
        met: Some(figure / limit >= SHARE),
    });
    table.note(format!("{question}, {present} present: {}", rates.processor()));
    Ok(())
}

/// Responses per second, and processor time per response in microseconds, which is the steadier
/// figure on a shared machine.
pub(crate) struct Rates {
    pub(crate) ours: f64,
    pub(crate) theirs: f64,
    used: f64,
    bare_used: f64,
}

impl Rates {
    pub(crate) fn processor(&self) -> String {
        format!("processor time {:.1} µs, bare {:.1} µs", self.used, self.bare_used)
    }
}

/// Alternates between the two, so that both see the same background load.
pub(crate) async fn side_by_side(
    scale: &Scale,
    (bare, daemon, port): (&BareServer, &Daemon, u16),
    question: &str,
    of_bare: &str,
) -> anyhow::Result<Rates> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let (used, bare_used) = (daemon.process.processor()?, bare.process.processor()?);
    for _ in 0..scale.rounds {
        theirs.push(load::rate(bare.port, scale.window, of_bare).await?);
        ours.push(load::rate(port, scale.window, question).await?);
    }
    let each = |used: f64, rates: &[f64]| {
        used * 1e6 / (rates.iter().sum::<f64>() * scale.window.as_secs_f64())
    };
    Ok(Rates {
        used: each(daemon.process.processor()? - used, &ours),
        bare_used: each(bare.process.processor()? - bare_used, &theirs),
        ours: median(&ours),
        theirs: median(&theirs),
    })
}

/// Fifty clients that connect at the same time.
async fn snapshots(home: &Path, host: &Host, table: &mut Table) -> anyhow::Result<()> {
    let (daemon, port) = Daemon::open(home, host).await?;
    let before = daemon.process.resident()?;
    let listeners = load::listeners(port, "/v1/events", 50).await?;
    let grown = daemon.process.peak()? - before;
    drop(listeners);
    bounded(
        table,
        "snapshots to 50 clients at once, growth".to_owned(),
        grown,
        "MB",
        MOST_MEGABYTES_FOR_SNAPSHOTS,
    );
    daemon.stop().await
}

async fn events(
    scale: &Scale,
    bare: &BareServer,
    (home, host): (&Path, &Host),
    clients: usize,
    table: &mut Table,
) -> anyhow::Result<()> {
    let rounds = scale.rounds.min(3);
    add_parents(home, rounds)?;
    let (daemon, port) = Daemon::open(home, host).await?;
    let mut listeners = load::listeners(port, "/v1/events", clients).await?;
    let deliveries = (clients * BURST) as f64;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let (used, own) = (daemon.process.processor()?, own_processor()?);
    let mut bytes = 0;
    for round in 0..rounds {
        let caller = CallerView { session_id: parent(round), ..CallerView::default() };
        let began = Instant::now();
        daemon.client.clear(&ClearRequest { caller, key: None }).await?;
        bytes += load::all_hear(&mut listeners, BURST).await?;
        ours.push(deliveries / began.elapsed().as_secs_f64());
    }
    let each = |seconds: f64| seconds * 1e6 / (deliveries * rounds as f64);
    let (used, own) = (each(daemon.process.processor()? - used), each(own_processor()? - own));
    drop(listeners);
    daemon.stop().await?;

    // The same payload without the seven bytes of chunked framing.
    let size = bytes / (clients * BURST * rounds) - 7;
    let mut listeners = load::listeners(bare.port, "/stream", clients).await?;
    let bare_used = bare.process.processor()?;
    let mut connection = Connection::open(bare.port).await?;
    for _ in 0..rounds {
        let began = Instant::now();
        connection.get(&format!("/burst/{BURST}/{size}")).await?;
        load::all_hear(&mut listeners, BURST).await?;
        theirs.push(deliveries / began.elapsed().as_secs_f64());
    }
    let bare_used = each(bare.process.processor()? - bare_used);
    let (figure, limit) = (median(&ours), median(&theirs));
    table.add(Row {
        what: format!("events to {clients} clients"),
        figure: format!("{figure:.0}/s"),
        limit: format!("{limit:.0}/s"),
        ratio: Some(figure / limit),
        target: format!("≥ {SHARE_OF_EVENTS}"),
        met: Some(figure / limit >= SHARE_OF_EVENTS),
    });
    table.note(format!(
        "events of {size} bytes to {clients} clients: processor time per delivery {used:.2} µs, bare {bare_used:.2} \
         µs, the clients themselves {own:.2} µs"
    ));
    Ok(())
}

fn parent(round: usize) -> String {
    format!("ses_burst{round:017}")
}

/// Each with tasks enough for a burst.
fn add_parents(home: &Path, parents: usize) -> anyhow::Result<()> {
    let clock = Clock::system();
    let path = database(home);
    let mut db = Database::open(&path)?;
    rows::like_the_store(&db)?;
    let tx = db.transaction()?;
    let now = clock.now().as_millis();
    for round in 0..parents {
        for n in 0..BURST {
            let n = 2_000 + round * BURST + n;
            rows::ended_of(&tx, &clock, n, &parent(round), (now - 60_000, now))?;
        }
    }
    tx.commit()?;
    drop(db);
    Store::open(&path, |_| {})?.0.close();
    Ok(())
}
