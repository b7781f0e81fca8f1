//! Results that have to fit a schema (O7): an answer that does not is asked for again in the same run, and ends
//! it as an error when too many did not. What to do is decided by the pure `task::schema`; how often it was done
//! is counted by the rows of the run, so that a restart changes nothing.

use std::sync::Arc;

use super::core::Core;
use super::turns::Bell;
use crate::store::{self, ActiveTask};
use crate::task::lifecycle::Report;
use crate::task::schema::Fit;
use crate::threads;

/// A handle; cloning it is cheap.
#[derive(Clone)]
pub(super) struct SchemaCheck {
    core: Core,
    /// A child may be owed a prompt.
    prompts: Bell,
}

impl SchemaCheck {
    pub(super) fn new(core: Core, prompts: Bell) -> SchemaCheck {
        SchemaCheck { core, prompts }
    }

    /// The report of an end with its result checked; `None` when the agent is asked again.
    pub(super) async fn check(
        &self,
        active: &ActiveTask,
        report: Report,
    ) -> Result<Option<Report>, store::Error> {
        let (result, schema) = match (report, &active.task.order.schema) {
            (Report::Finished { result }, Some(schema)) => (result, schema.clone()),
            (report, _) => return Ok(Some(report)),
        };
        let (answer, before) = (Arc::clone(&result), active.run.corrections);
        // An answer may have megabytes.
        let judged = threads::within(threads::LIMIT, move || schema.judge(&answer, before)).await;
        let fit = judged.unwrap_or_else(|stuck| {
            Fit::GivesUp(format!("the answer could not be checked against the schema: {stuck}"))
        });
        match fit {
            Fit::Fits(json) => Ok(Some(Report::Finished { result: json.into() })),
            Fit::GivesUp(error) => Ok(Some(Report::Failed { error, partial: Some(result) })),
            Fit::AskAgain(text) => {
                let (core, task) = (&self.core, &active.task);
                tracing::info!(task = %task.id, "answer does not fit the schema; asking again");
                // Conditional on the revision that was judged: a message, a cancel or another check that
                // came first wins, and this writes nothing. `None` all the same: the next check judges what
                // is there.
                core.store().further().correct(task, text, core.clock().now()).await?;
                self.prompts.ring();
                Ok(None)
            }
        }
    }
}
