//! The providers of models, as the daemon sees them.

use axum::Json;
use axum::extract::State;

use super::Api;
use super::body::Body;
use super::error::ApiError;
use crate::supervisor::{Look, ProviderStanding};
use crate::tools;
use crate::wire::{ProviderView, ProvidersRequest, ProvidersView};

pub(super) async fn list(
    State(api): State<Api>,
    Body(request): Body<ProvidersRequest>,
) -> Result<Json<ProvidersView>, ApiError> {
    let look = if request.check { Look::Closely } else { Look::Glance };
    let handed = tools::handed(request.hand_over);
    let (model, standings) = api.supervisor.providers(handed, look).await?;
    Ok(Json(ProvidersView { model, providers: standings.into_iter().map(view).collect() }))
}

fn view(standing: ProviderStanding) -> ProviderView {
    let ProviderStanding { name, key, address, problem } = standing;
    ProviderView { name, key, address, problem }
}
