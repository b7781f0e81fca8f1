//! Searching descriptions, compared with a bare server that scans the same descriptions in memory
//! and copies as many bytes of the matches into its response.

use crate::api::{Rates, side_by_side};
use crate::history::Histories;
use crate::load::Connection;
use crate::processes::{Daemon, Host};
use crate::table::{Row, Table};
use crate::web::BareServer;
use crate::{Scale, progress};

const ON_A_PAGE: usize = 50;
const SHARE: f64 = 0.3;
/// In a shorter history, building the page costs more than the search.
const LONG_HISTORY: usize = 100_000;

/// The search alone, without the rest of the API.
pub(crate) async fn measure(
    scale: &Scale,
    histories: &mut Histories,
    table: &mut Table,
) -> anyhow::Result<()> {
    let bare = BareServer::start(scale.present_for_api.last().copied().unwrap_or(0))?;
    let host = Host::start(&histories.place()?).await?;
    for &present in &scale.present_for_api {
        progress(format!("searches with {present} tasks present"));
        let (daemon, port) = Daemon::open(&histories.with(present)?, &host).await?;
        let before = daemon.process.resident()?;
        compare(scale, (&bare, &daemon, port), present, table).await?;
        let (after, peak) = (daemon.process.resident()?, daemon.process.peak()?);
        table.note(format!(
            "searches with {present} present: memory {before:.1} MB before, {after:.1} MB after, \
             {peak:.1} MB at most"
        ));
        daemon.stop().await?;
    }
    Ok(())
}

pub(crate) async fn compare(
    scale: &Scale,
    (bare, daemon, port): (&BareServer, &Daemon, u16),
    present: usize,
    table: &mut Table,
) -> anyhow::Result<()> {
    let page = format!("/v1/tasks?limit={ON_A_PAGE}");
    let size = Connection::open(port).await?.get(&page).await? / ON_A_PAGE;
    for (kind, word) in [("a rare word", "zebrafish"), ("a common word", "module")] {
        let question = format!("/v1/tasks?search={word}&limit={ON_A_PAGE}");
        let scan = format!("/scan/{present}/{word}/{ON_A_PAGE}/{size}");
        let rates = side_by_side(scale, (bare, daemon, port), &question, &scan).await?;
        let Rates { ours: figure, theirs: limit, .. } = rates;
        let judged = present >= LONG_HISTORY;
        table.add(Row {
            what: format!("search for {kind}, {present} present"),
            figure: format!("{figure:.0}/s"),
            limit: format!("{limit:.0}/s"),
            ratio: Some(figure / limit),
            target: if judged { format!("≥ {SHARE} of a scan in memory") } else { String::new() },
            met: judged.then_some(figure / limit >= SHARE),
        });
        table.note(format!("search for {kind}, {present} present: {}", rates.processor()));
    }
    Ok(())
}
