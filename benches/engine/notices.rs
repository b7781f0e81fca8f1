//! From the end of a run to the parent's notice, both on the host's clock: the time just before the
//! host is told to finish a hanging run, and the time the host logs with the post.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use asyncagents::clock::Clock;
use asyncagents::host::scripted::Control;
use asyncagents::host::{ClientCredentials, Host as _, NewSession};
use asyncagents::task::SessionId;
use asyncagents::task::launch::Arguments;
use asyncagents::wire::{CallerView, LaunchRequest};
use futures_util::future::try_join_all;

use crate::bare;
use crate::history::Histories;
use crate::processes::{Daemon, Host};
use crate::table::{Row, Table, median, quantile};
use crate::{Scale, progress};

const IN_A_BURST: usize = 100;
const MOST_MILLIS_OVER_FSYNC: f64 = 5.0;
const MOST_MILLIS_IN_A_BURST: f64 = 200.0;
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Lets one parent run a whole burst at once.
const CONFIG: &str = "[limits]\nactive_per_parent = 200\n";

struct Stage {
    host: Host,
    daemon: Daemon,
    clock: Clock,
    posts: Posts,
}

/// Follows the host's log.
struct Posts {
    log: BufReader<File>,
    /// An incomplete line: the host is still writing it.
    begun: String,
}

/// Milliseconds since the first end.
struct Burst {
    /// When the host had been told to end the last run.
    sent: f64,
    first: f64,
    last: f64,
}

pub(crate) async fn measure(
    scale: &Scale,
    histories: &mut Histories,
    table: &mut Table,
) -> anyhow::Result<()> {
    let present = scale.present_for_notices;
    let host = Host::start(&histories.place()?).await?;
    let daemon = Daemon::start(&histories.with(present)?, &host, CONFIG).await?;
    let posts = Posts::open(&host.posts)?;
    let mut stage = Stage { host, daemon, clock: Clock::system(), posts };

    progress(format!("single ends with {present} tasks present"));
    let parent = stage.parent().await?;
    let (mut singles, mut fsyncs) = (Vec::new(), Vec::new());
    for n in 0..scale.single_ends {
        let burst = stage.end_at_once(std::slice::from_ref(&parent), 1).await?;
        // Interleaved with the fsyncs, because the speed of the disk varies over time.
        let fsync = bare::fsyncs(histories.folder(), 1)?;
        if n >= scale.single_ends / 10 {
            singles.push(burst.last);
            fsyncs.extend(fsync);
        }
    }
    let fsync = median(&fsyncs);
    add_singles(table, &singles, fsync);

    for parents in [1, 10] {
        progress(format!("bursts of {IN_A_BURST} ends for {parents} parent(s)"));
        let mut bursts = Vec::with_capacity(scale.bursts);
        for _ in 0..scale.bursts {
            let parents = try_join_all((0..parents).map(|_| stage.parent())).await?;
            bursts.push(stage.end_at_once(&parents, IN_A_BURST).await?);
        }
        add_bursts(table, &bursts, parents, fsync);
    }
    stage.daemon.stop().await
}

impl Stage {
    /// A conversation on the scripted host.
    async fn parent(&self) -> anyhow::Result<SessionId> {
        let session = NewSession {
            parent: None,
            title: "a parent".to_owned(),
            nonce: self.clock.nonce(),
            directory: "/".to_owned(),
            agent: "build".to_owned(),
            deny: Vec::new(),
            handed: ClientCredentials::default(),
        };
        Ok(self.host.scripted.open(session).await?.session)
    }

    async fn end_at_once(&mut self, parents: &[SessionId], ends: usize) -> anyhow::Result<Burst> {
        let launches = (0..ends).map(|n| self.hang(&parents[n % parents.len()]));
        let sessions = try_join_all(launches).await?;
        // Let the last writes of the launches finish; they are not part of the end.
        tokio::time::sleep(Duration::from_millis(if ends > 1 { 300 } else { 15 })).await;
        self.posts.expect_none()?;

        let began = self.clock.micros();
        let finish = |session: SessionId| {
            let text = "the answer".to_owned();
            self.host.scripted.control(Control::Finish { session, text })
        };
        try_join_all(sessions.into_iter().map(finish)).await?;
        let since = |at: i64| (at - began) as f64 / 1_000.0;
        let sent = since(self.clock.micros());
        let arrived = self.posts.next(ends).await?;
        let arrived: Vec<f64> = arrived.into_iter().map(since).collect();
        Ok(Burst { sent, first: quantile(&arrived, 0.0), last: quantile(&arrived, 1.0) })
    }

    /// A task that does not end by itself, once the daemon has observed it running.
    async fn hang(&self, parent: &SessionId) -> anyhow::Result<SessionId> {
        let request = LaunchRequest {
            caller: CallerView {
                session_id: parent.to_string(),
                message_id: "msg_bench".to_owned(),
                agent: "build".to_owned(),
                directory: "/".to_owned(),
                host: "scripted".to_owned(),
                development: false,
                ..CallerView::default()
            },
            arguments: Arguments {
                description: Some("hang until told".to_owned()),
                prompt: Some("@hang".to_owned()),
                agent: Some("general".to_owned()),
                ..Arguments::default()
            },
            key: None,
            ..LaunchRequest::default()
        };
        let client = &self.daemon.client;
        let task = client.launch(&request).await?;
        let began = Instant::now();
        loop {
            let seen = client.task(&task.session_id).await?;
            if seen.progress.phase.name() == "waiting" {
                return Ok(SessionId::new(task.session_id));
            }
            if began.elapsed() > LONGEST_WAIT {
                bail!("the task does not start: {seen:?}");
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

impl Posts {
    fn open(path: &Path) -> anyhow::Result<Posts> {
        Ok(Posts { log: BufReader::new(File::open(path)?), begun: String::new() })
    }

    /// The arrival times of the next `posts` posts, in microseconds since 1970.
    async fn next(&mut self, posts: usize) -> anyhow::Result<Vec<i64>> {
        let began = Instant::now();
        let mut arrived = Vec::with_capacity(posts);
        while arrived.len() < posts {
            match self.read()? {
                Some(at) => arrived.push(at),
                None if began.elapsed() > LONGEST_WAIT => {
                    bail!("{} of {posts} notices arrived", arrived.len());
                }
                None => tokio::time::sleep(Duration::from_millis(2)).await,
            }
        }
        Ok(arrived)
    }

    fn expect_none(&mut self) -> anyhow::Result<()> {
        match self.read()? {
            Some(_) => bail!("a notice before the end"),
            None => Ok(()),
        }
    }

    fn read(&mut self) -> anyhow::Result<Option<i64>> {
        self.log.read_line(&mut self.begun)?;
        if !self.begun.ends_with('\n') {
            return Ok(None);
        }
        let line: serde_json::Value = serde_json::from_str(&std::mem::take(&mut self.begun))?;
        if line["again"] != false {
            bail!("a notice came twice");
        }
        Ok(Some(line["at"].as_i64().context("a post without its time")?))
    }
}

fn add_singles(table: &mut Table, singles: &[f64], fsync: f64) {
    let most = fsync + MOST_MILLIS_OVER_FSYNC;
    let mut row = |share: f64, what: &str, met: Option<bool>| {
        let figure = quantile(singles, share);
        table.add(Row {
            what: format!("end → notice, single, {what}"),
            figure: format!("{figure:.2} ms"),
            limit: format!("{fsync:.2} ms"),
            ratio: Some(figure / fsync),
            target: met.map_or(String::new(), |_| format!("≤ fsync + {MOST_MILLIS_OVER_FSYNC} ms")),
            met,
        });
    };
    row(0.5, "p50", Some(median(singles) <= most));
    row(0.99, "p99", None);
}

fn add_bursts(table: &mut Table, bursts: &[Burst], parents: usize, fsync: f64) {
    let all = |of: fn(&Burst) -> f64| bursts.iter().map(of).collect::<Vec<_>>();
    let last = all(|burst| burst.last);
    let figure = median(&last);
    table.add(Row {
        what: format!("{IN_A_BURST} ends → last notice, {parents} parent(s)"),
        figure: format!("{figure:.0} ms"),
        limit: format!("{fsync:.2} ms"),
        ratio: Some(figure / fsync),
        target: format!("≤ {MOST_MILLIS_IN_A_BURST} ms"),
        met: Some(figure <= MOST_MILLIS_IN_A_BURST),
    });
    table.note(format!(
        "burst, {parents} parent(s): the host had all ends after {:.0} ms, the first notice came \
         after {:.0} ms; slowest burst {:.0} ms",
        median(&all(|burst| burst.sent)),
        median(&all(|burst| burst.first)),
        quantile(&last, 1.0),
    ));
}
