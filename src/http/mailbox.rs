//! Mailboxes: the unread notices of parents that are no conversation, and their acknowledgement.
//!
//! Reading here marks as read at once. Tool answers instead carry a receipt, which the client sends back when
//! the answer has arrived (`/v1/mailbox/read`): a notice in an answer that was lost is handed out again.

use axum::Json;
use axum::extract::State;

use super::Api;
use super::body::Body;
use super::error::ApiError;
use crate::supervisor::Mailbox;
use crate::tools;
use crate::wire::{CallerRequest, MailboxView, NoticeView, ReadRequest};

pub(super) async fn read(
    State(api): State<Api>,
    Body(request): Body<CallerRequest>,
) -> Result<Json<MailboxView>, ApiError> {
    let caller = tools::caller(request.caller)?;
    let Mailbox { notices, left } = api.supervisor.read_mailbox(&caller).await?;
    let view = |notice: crate::supervisor::Notice| NoticeView {
        visible: notice.visible,
        hidden: notice.hidden,
    };
    Ok(Json(MailboxView { notices: notices.into_iter().map(view).collect(), left }))
}

/// Acknowledges the notices that came with a tool's answer, and the answers of deferred calls.
pub(super) async fn was_read(
    State(api): State<Api>,
    Body(request): Body<ReadRequest>,
) -> Result<Json<()>, ApiError> {
    api.supervisor.was_received(request.receipt, request.calls).await?;
    Ok(Json(()))
}
