//! Searching descriptions beside a bare server that goes through the same ones in memory, and
//! copies as many bytes of those it found into its answer.

use crate::history::Histories;
use crate::load::{self, Connection};
use crate::processes::{Daemon, Host};
use crate::table::{Row, Table, median};
use crate::web::Bare;
use crate::{Scale, progress, rows};

const ON_A_PAGE: usize = 50;

/// More pages than are kept ready.
const PAGES: usize = 500;

/// The word and the place of the page in the nth question.
type Searched<'a> = &'a dyn Fn(usize) -> (String, usize);

/// Only this.
pub(crate) async fn measure(
    scale: &Scale,
    histories: &mut Histories,
    table: &mut Table,
) -> anyhow::Result<()> {
    let bare = Bare::start(scale.present_for_api.last().copied().unwrap_or(0))?;
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
    (bare, daemon, port): (&Bare, &Daemon, u16),
    present: usize,
    table: &mut Table,
) -> anyhow::Result<()> {
    let page = format!("/v1/tasks?limit={ON_A_PAGE}");
    let size = Connection::open(port).await?.get(&page).await? / ON_A_PAGE;
    let common = rows::common_words();
    // Never the same question twice in a row, so that none is answered from what is kept ready:
    // other pages of what one word finds, or another word every time.
    let rare = |n: usize| ("zebrafish".to_owned(), n % PAGES);
    let module = |n: usize| ("module".to_owned(), n % PAGES);
    let other_rare = |n: usize| (rows::rare_word(n, present), 0);
    let other_common = |n: usize| (common[n % common.len()].clone(), 0);
    let kinds: [(&str, Searched<'_>); 4] = [
        ("a rare word", &rare),
        ("a common word", &module),
        ("ever another rare word", &other_rare),
        ("ever another common word", &other_common),
    ];
    for (kind, searched) in kinds {
        let question = |n: usize| {
            let (word, offset) = searched(n);
            let word = word.replace(' ', "%20");
            format!("/v1/tasks?search={word}&limit={ON_A_PAGE}&offset={offset}")
        };
        let scan = |n: usize| {
            let (word, offset) = searched(n);
            let word = word.replace(' ', "%20");
            format!("/scan/{present}/{word}/{ON_A_PAGE}/{offset}/{size}")
        };
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        let (used, bare_used) = (daemon.process.processor()?, bare.process.processor()?);
        for _ in 0..scale.rounds {
            theirs.push(load::rate(bare.port, scale.window, scan).await?);
            ours.push(load::rate(port, scale.window, question).await?);
        }
        let each = |used: f64, rates: &[f64]| {
            used * 1e6 / (rates.iter().sum::<f64>() * scale.window.as_secs_f64())
        };
        let used = each(daemon.process.processor()? - used, &ours);
        let bare_used = each(bare.process.processor()? - bare_used, &theirs);
        let (figure, limit) = (median(&ours), median(&theirs));
        table.add(Row {
            what: format!("search for {kind}, {present} present"),
            figure: format!("{figure:.0}/s"),
            limit: format!("{limit:.0}/s"),
            ratio: Some(figure / limit),
            target: "≥ 1: a scan in memory".to_owned(),
            met: Some(figure >= limit),
        });
        table.note(format!(
            "search for {kind}, {present} present: processor time {used:.1} µs, bare {bare_used:.1} µs"
        ));
    }
    Ok(())
}
