//! `asyncagents approve` and `deny` without an id on a terminal: a numbered list of what agents ask for, of
//! which the person picks. An answer is for exactly the requests that were shown under their numbers; an
//! empty line answers nothing.

use std::io::Write;
use std::process::ExitCode;

use rustix::termios::{QueueSelector, tcflush};

use super::connection::{Connection, has_status};
use super::{complain, show};
use crate::client::Client;
use crate::clock::Clock;
use crate::quote;
use crate::task::SHELL;
use crate::wire::{AnswerRequest, Door, PermissionView};

/// What was typed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Choice {
    /// The request of this place in the list.
    One(usize),
    /// All that are shown of the task of this request.
    OfTask(usize),
    Leave,
    Nothing,
    Unknown,
}

fn choice(typed: &str, shown: usize) -> Choice {
    let place = |word: &str| word.parse().ok().filter(|n: &usize| (1..=shown).contains(n));
    match typed.split_whitespace().collect::<Vec<_>>().as_slice() {
        [] => Choice::Nothing,
        ["q" | "quit"] => Choice::Leave,
        ["a", number] => place(number).map_or(Choice::Unknown, |n| Choice::OfTask(n - 1)),
        [number] => place(number).map_or(Choice::Unknown, |n| Choice::One(n - 1)),
        _ => Choice::Unknown,
    }
}

/// Shows what is asked until nothing is left or the person leaves.
pub(super) async fn pick(connection: &Connection<'_>, allow: bool) -> anyhow::Result<ExitCode> {
    loop {
        let open = connection.permissions().await?;
        if open.is_empty() {
            show::line("No permission requests are waiting.")?;
            return Ok(ExitCode::SUCCESS);
        }
        for (n, PermissionView { short_id, description, what, .. }) in open.iter().enumerate() {
            let task = format!("{short_id} {}", quote::literal(description));
            show::quoted(&format!("{}  {task} asks:", n + 1), what)?;
        }
        // What was typed before the list was there is no answer to it: its numbers may have meant others.
        tcflush(std::io::stdin(), QueueSelector::IFlush)?;
        let Some(picked) = ask(&open, allow).await? else { return Ok(ExitCode::SUCCESS) };
        for request in picked {
            answer(connection, request, allow).await?;
        }
    }
}

/// The requests that the person picks; `None` to leave.
async fn ask(open: &[PermissionView], allow: bool) -> anyhow::Result<Option<Vec<&PermissionView>>> {
    let word = if allow { "Allow" } else { "Deny" };
    loop {
        eprint!("{word} which? A number, `a NUMBER` for all of that task, `q` to leave: ");
        std::io::stderr().flush()?;
        let line = tokio::task::spawn_blocking(|| {
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).map(|read| (read > 0).then_some(line))
        });
        let Some(line) = line.await?? else {
            // The end of the input is no answer.
            eprintln!();
            return Ok(None);
        };
        match choice(&line, open.len()) {
            Choice::One(n) => return Ok(Some(vec![&open[n]])),
            Choice::OfTask(n) => {
                let task = &open[n].session_id;
                return Ok(Some(open.iter().filter(|other| other.session_id == *task).collect()));
            }
            Choice::Leave => return Ok(None),
            Choice::Nothing => show::note("Nothing was answered."),
            Choice::Unknown => {
                show::note(&format!(
                    "Nothing was answered: there is no such choice; the numbers go from 1 to {}.",
                    open.len()
                ));
            }
        }
    }
}

async fn answer(
    connection: &Connection<'_>,
    request: &PermissionView,
    allow: bool,
) -> anyhow::Result<()> {
    let (by, key) = (SHELL.to_owned(), Some(Clock::system().nonce()));
    let answer = AnswerRequest { allow, door: Door::Cli, by, key };
    // While the person thought about it, the daemon may have been replaced by one that has not looked at its hosts yet.
    let call = async |client: &Client| client.answer(&request.id, &answer).await;
    match connection.call_settling(call).await {
        Ok(_) => {
            let word = if allow { "allowed" } else { "denied" };
            show::quoted(&format!("{word} {}:", request.short_id), &request.what)
        }
        // It was answered elsewhere, or its task has ended: the others can still be answered.
        Err(error) if has_status(&error, 404) => {
            complain(&request.short_id, &error);
            Ok(())
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_number_that_is_shown_is_an_answer() {
        let check =
            |typed: &str, expected: Choice| assert_eq!(choice(typed, 2), expected, "{typed}");
        for nothing in ["", "\n", "  \t\n"] {
            check(nothing, Choice::Nothing);
        }
        check("1\n", Choice::One(0));
        check(" 2 \n", Choice::One(1));
        check("a 2\n", Choice::OfTask(1));
        check("q\n", Choice::Leave);
        check("quit\n", Choice::Leave);
        for unknown in ["0", "3", "-1", "1 2", "a", "a 3", "all", "y", "yes", "1;2", "\u{1b}[A"] {
            check(unknown, Choice::Unknown);
        }
    }
}
