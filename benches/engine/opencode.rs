//! On an OpenCode server: from the end of a run to the parent's notice, both on the server's clock,
//! and how often the server is called while tasks are running. The server is the tests' stub, in
//! this process; the daemon is the release binary.

use std::time::{Duration, Instant};

use anyhow::bail;
use asyncagents::task::launch::Arguments;
use asyncagents::wire::{CallerView, LaunchRequest};
use futures_util::future::try_join_all;

use crate::bare;
use crate::history::Histories;
use crate::processes::Daemon;
use crate::stub::OpenCode;
use crate::table::{Row, Table, median, quantile};
use crate::{Scale, progress};

const HERE: &str = "/tmp";
const IN_A_BURST: usize = 100;
const MOST_MILLIS_OVER_FSYNC: f64 = 10.0;
const MOST_MILLIS_IN_A_BURST: f64 = 300.0;
const MOST_CALLS_A_SECOND: f64 = 2.0;
const LONGEST_WAIT: Duration = Duration::from_secs(60);
const REST: Duration = Duration::from_secs(10);
const CONFIG: &str = "[limits]\nactive_per_parent = 1000\n";

struct Stage {
    server: OpenCode,
    daemon: Daemon,
}

pub(crate) async fn measure(
    scale: &Scale,
    histories: &mut Histories,
    table: &mut Table,
) -> anyhow::Result<()> {
    let mut medians = Vec::new();
    for present in [0, scale.present_for_notices] {
        let stage = Stage::start(histories, present).await?;
        progress(format!("single ends on OpenCode with {present} tasks present"));
        let parent = stage.server.parent(HERE).await;
        let (mut singles, mut fsyncs) = (Vec::new(), Vec::new());
        for n in 0..scale.single_ends {
            let took = stage.end_at_once(&parent, 1).await?;
            let fsync = bare::fsyncs(histories.folder(), 1)?;
            if n >= scale.single_ends / 10 {
                singles.push(took);
                fsyncs.extend(fsync);
            }
        }
        let (p50, fsync) = (median(&singles), median(&fsyncs));
        medians.push(p50);
        table.add(Row {
            what: format!("OpenCode end → notice, {present} present, p50"),
            figure: format!("{p50:.2} ms"),
            limit: format!("fsync {fsync:.2} ms"),
            ratio: None,
            target: format!("≤ {MOST_MILLIS_OVER_FSYNC} ms over it"),
            met: Some(p50 - fsync <= MOST_MILLIS_OVER_FSYNC),
        });
        table.note(format!("its p99 with {present} present: {:.2} ms", quantile(&singles, 0.99)));
        stage.daemon.stop().await?;
    }
    table.add(Row {
        what: "the same, many present beside none".into(),
        figure: format!("{:.2} ms", medians[1]),
        limit: format!("{:.2} ms", medians[0]),
        ratio: Some(medians[1] / medians[0]),
        target: "flat".into(),
        met: None,
    });

    let stage = Stage::start(histories, 0).await?;
    progress(format!("bursts of {IN_A_BURST} ends on OpenCode"));
    let mut bursts = Vec::new();
    for _ in 0..scale.bursts {
        let parent = stage.server.parent(HERE).await;
        bursts.push(stage.end_at_once(&parent, IN_A_BURST).await?);
    }
    let burst = median(&bursts);
    table.add(Row {
        what: format!("OpenCode burst of {IN_A_BURST} ends → last notice"),
        figure: format!("{burst:.0} ms"),
        limit: String::new(),
        ratio: None,
        target: format!("≤ {MOST_MILLIS_IN_A_BURST} ms"),
        met: Some(burst <= MOST_MILLIS_IN_A_BURST),
    });
    stage.daemon.stop().await?;

    for running in [10, 100, 1_000] {
        let stage = Stage::start(histories, 0).await?;
        progress(format!("calls at rest with {running} running on OpenCode"));
        let parent = stage.server.parent(HERE).await;
        for _ in 0..running / 10 {
            try_join_all((0..10).map(|_| stage.hang(&parent))).await?;
        }
        tokio::time::sleep(REST / 2).await;
        let (before, at) = (stage.calls(), Instant::now());
        tokio::time::sleep(REST).await;
        let rate = (stage.calls() - before) as f64 / at.elapsed().as_secs_f64();
        table.add(Row {
            what: format!("calls to OpenCode at rest, {running} running"),
            figure: format!("{rate:.2} /s"),
            limit: String::new(),
            ratio: None,
            target: format!("≤ {MOST_CALLS_A_SECOND} /s"),
            met: Some(rate <= MOST_CALLS_A_SECOND),
        });
        stage.daemon.stop().await?;
    }
    Ok(())
}

impl Stage {
    async fn start(histories: &mut Histories, present: usize) -> anyhow::Result<Stage> {
        let server = OpenCode::start().await;
        let daemon = Daemon::on_opencode(&histories.with(present)?, &server.url(), CONFIG).await?;
        Ok(Stage { server, daemon })
    }

    fn calls(&self) -> usize {
        self.server.all_calls().values().sum()
    }

    /// Milliseconds from the first end to the last notice in the parent's conversation.
    async fn end_at_once(&self, parent: &str, ends: usize) -> anyhow::Result<f64> {
        let sessions = try_join_all((0..ends).map(|_| self.hang(parent))).await?;
        tokio::time::sleep(Duration::from_millis(if ends > 1 { 500 } else { 20 })).await;
        let before = self.server.count_posts(parent, "prompt_async");
        let began = Instant::now();
        for session in &sessions {
            self.server.finish(session, "the answer");
        }
        while self.server.count_posts(parent, "prompt_async") < before + ends {
            if began.elapsed() > LONGEST_WAIT {
                bail!("the parent is not told");
            }
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        Ok(began.elapsed().as_secs_f64() * 1_000.0)
    }

    /// A task that does not end by itself, once the daemon has observed it running.
    async fn hang(&self, parent: &str) -> anyhow::Result<String> {
        let request = LaunchRequest {
            caller: CallerView {
                session_id: parent.to_owned(),
                message_id: "msg_bench".to_owned(),
                agent: "build".to_owned(),
                directory: HERE.to_owned(),
                host: "opencode".to_owned(),
                ..CallerView::default()
            },
            arguments: Arguments {
                description: Some("hang until told".to_owned()),
                prompt: Some("@hang".to_owned()),
                agent: Some("general".to_owned()),
                ..Arguments::default()
            },
            ..LaunchRequest::default()
        };
        let client = &self.daemon.client;
        let id = client.launch(&request).await?.session_id;
        let began = Instant::now();
        loop {
            let seen = client.task(&id).await?;
            if seen.progress.phase.name() != "starting" && !self.server.is_idle(&id) {
                return Ok(id);
            }
            if began.elapsed() > LONGEST_WAIT {
                bail!("the task does not start: {seen:?}");
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}
