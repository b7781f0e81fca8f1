//! `POST /v1/providers`: the model providers as the daemon sees them for this caller: where each key comes
//! from, whether it can be used, and on request which models there are. A POST, because the request carries
//! keys of the caller's environment.

use axum::Json;
use axum::extract::State;

use super::Api;
use super::body::Body;
use super::error::ApiError;
use crate::supervisor::{ModelStatus, ProbeDepth, ProviderStatus};
use crate::tools;
use crate::wire::{ProviderView, ProvidersRequest, ProvidersView};

pub(super) async fn list(
    State(api): State<Api>,
    Body(request): Body<ProvidersRequest>,
) -> Result<Json<ProvidersView>, ApiError> {
    let depth = match (request.online, request.check) {
        (true, _) => ProbeDepth::Online,
        (false, true) => ProbeDepth::Keys,
        (false, false) => ProbeDepth::Settings,
    };
    let handed = tools::handed(request.hand_over);
    let ModelStatus { model, problem, providers } = api.supervisor.providers(handed, depth).await?;
    let name = model.split_once('/').map_or("", |(_, name)| name).to_owned();
    let providers = providers.into_iter().map(|status| view(status, &model, &name)).collect();
    Ok(Json(ProvidersView { model, problem, providers }))
}

fn view(status: ProviderStatus, model: &str, bare: &str) -> ProviderView {
    let ProviderStatus { name, key, address, problem, models } = status;
    let is_of_model = model.split_once('/').is_some_and(|(provider, _)| provider == name);
    let of_model = models.as_ref().filter(|_| is_of_model);
    let has_model = of_model.and_then(|models| {
        let is_listed = models.names.iter().any(|model| model == bare);
        // A model that is not in a list that was cut short may be in the part that was not read, so the
        // answer is "not known" instead of "no".
        (is_listed || !models.is_cut).then_some(is_listed)
    });
    let more_models = models.as_ref().is_some_and(|models| models.is_cut);
    let models = models.map(|models| models.names.len());
    ProviderView { name, key, address, problem, models, more_models, has_model }
}
