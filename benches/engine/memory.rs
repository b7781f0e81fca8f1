//! The daemon's memory (RSS), idle and under load, with histories of different sizes.

use asyncagents::client::Client;
use asyncagents::wire::{CallerView, OutputRequest};

use crate::history::Histories;
use crate::processes::{Daemon, Host};
use crate::table::{Row, Table};
use crate::{Scale, progress};

const MOST_MEGABYTES: f64 = 25.0;
const REQUESTS: usize = 200;

pub(crate) async fn measure(
    scale: &Scale,
    histories: &mut Histories,
    table: &mut Table,
) -> anyhow::Result<()> {
    let host = Host::start(&histories.place()?).await?;
    // The scripted host is the same binary with a listener and an HTTP server: the floor.
    let floor = host.process.resident()?;
    let mut after_requests = Vec::new();
    for &present in scale.present.iter().filter(|&&present| present != 1_000) {
        progress(format!("memory with {present} tasks present"));
        let daemon = Daemon::start(&histories.with(present)?, &host, "").await?;
        let started = daemon.process.resident()?;
        ask(&daemon.client).await?;
        let asked = daemon.process.resident()?;
        daemon.stop().await?;
        for (what, figure) in [("after start", started), ("after 200 requests", asked)] {
            table.add(Row {
                what: format!("memory {what}, {present} present"),
                figure: format!("{figure:.1} MB"),
                limit: format!("{floor:.1} MB"),
                ratio: Some(figure / floor),
                target: format!("≤ {MOST_MEGABYTES} MB"),
                met: Some(figure <= MOST_MEGABYTES),
            });
        }
        after_requests.push(asked);
    }
    if let (Some(none), Some(most)) = (after_requests.first(), after_requests.last()) {
        table.add(Row {
            what: "memory, largest history less none".to_owned(),
            figure: format!("{:.1} MB", most - none),
            limit: String::new(),
            ratio: None,
            target: "flat: ≤ 5 MB".to_owned(),
            met: Some(most - none <= 5.0),
        });
    }
    Ok(())
}

/// A mix of reads: health, pages of the history, results.
async fn ask(client: &Client) -> anyhow::Result<()> {
    let caller = CallerView { session_id: "bench".to_owned(), ..CallerView::default() };
    let request = OutputRequest { caller, timeout: None };
    for n in 0..REQUESTS / 4 {
        client.health().await?;
        let page = client.tasks(&[("offset", (n * 50).to_string())]).await?;
        client.tasks(&[("status", "completed".into()), ("agent", "general".into())]).await?;
        match page.tasks.get(n % 50) {
            Some(task) => client.output(&task.session_id, &request).await.map(|_| ())?,
            None => client.health().await.map(|_| ())?,
        }
    }
    Ok(())
}
