//! Reasoning effort, in the parameters of each wire format. Generations of models differ: older ones take
//! a number of tokens, newer ones a word, and each refuses the other's parameter. An unknown model is
//! taken for a new one.

use serde_json::{Value, json};

use super::Wire;
use crate::agent::model::Effort;

/// The first Claude with adaptive thinking.
const ADAPTIVE_CLAUDE: (u32, u32) = (4, 6);
/// The first Gemini that takes a `thinkingLevel`.
const GEMINI_WITH_LEVELS: u32 = 3;

/// Sets the effort in a request body.
pub(super) fn set(wire: Wire, body: &mut Value, model: &str, effort: Effort) {
    let Some((word, tokens)) = level(effort) else { return };
    match wire {
        Wire::OpenAi => body["reasoning_effort"] = json!(word),
        Wire::Responses => body["reasoning"] = json!({ "effort": word }),
        Wire::Anthropic if claude(model).is_none_or(|version| version >= ADAPTIVE_CLAUDE) => {
            body["thinking"] = json!({"type": "adaptive"});
            body["output_config"] = json!({ "effort": word });
        }
        // The older way: a budget in tokens that is part of `max_tokens`.
        Wire::Anthropic => {
            body["thinking"] = json!({"type": "enabled", "budget_tokens": tokens});
        }
        Wire::Gemini if gemini(model).is_none_or(|version| version >= GEMINI_WITH_LEVELS) => {
            body["generationConfig"]["thinkingConfig"]["thinkingLevel"] = json!(word);
        }
        Wire::Gemini => {
            body["generationConfig"]["thinkingConfig"]["thinkingBudget"] = json!(tokens);
        }
    }
}

/// As a word, and as a budget in tokens: below `max_tokens`, as Anthropic requires. `None` asks for nothing.
fn level(effort: Effort) -> Option<(&'static str, u32)> {
    match effort {
        Effort::Default => None,
        Effort::Low => Some(("low", 2_048)),
        Effort::Medium => Some(("medium", 8_192)),
        Effort::High => Some(("high", 24_576)),
    }
}

/// The version in `claude-opus-4-6` or `claude-3-7-sonnet-20250219`; long numbers are dates.
fn claude(model: &str) -> Option<(u32, u32)> {
    let words = model.strip_prefix("claude-")?.split('-');
    let mut numbers = words.filter(|word| word.len() < 4).filter_map(|word| word.parse().ok());
    Some((numbers.next()?, numbers.next().unwrap_or(0)))
}

/// The major version in `gemini-2.5-pro`.
pub(super) fn gemini(model: &str) -> Option<u32> {
    model.strip_prefix("gemini-")?.split(['.', '-']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_generation_of_models_gets_its_own_parameter_for_reasoning_effort() {
        let adaptive =
            json!({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}});
        let budget = json!({"thinking": {"type": "enabled", "budget_tokens": 24_576}});
        let level = json!({"generationConfig": {"thinkingConfig": {"thinkingLevel": "high"}}});
        let tokens = json!({"generationConfig": {"thinkingConfig": {"thinkingBudget": 24_576}}});
        for (wire, model, expected) in [
            (Wire::OpenAi, "gpt-5", json!({"reasoning_effort": "high"})),
            (Wire::Responses, "gpt-5", json!({"reasoning": {"effort": "high"}})),
            (Wire::Anthropic, "claude-opus-4-6", adaptive.clone()),
            (Wire::Anthropic, "claude-sonnet-5", adaptive.clone()),
            (Wire::Anthropic, "claude-sonnet-5-5", adaptive.clone()),
            (Wire::Anthropic, "something-else", adaptive),
            (Wire::Anthropic, "claude-haiku-4-5-20251001", budget.clone()),
            (Wire::Anthropic, "claude-opus-4-20250514", budget.clone()),
            (Wire::Anthropic, "claude-3-7-sonnet-20250219", budget),
            (Wire::Gemini, "gemini-3-pro", level.clone()),
            (Wire::Gemini, "gemini-3.8-flash", level),
            (Wire::Gemini, "gemini-2.5-pro", tokens),
        ] {
            let mut body = json!({});
            set(wire, &mut body, model, Effort::High);
            assert_eq!(body, expected, "{model}");
        }
    }
}
