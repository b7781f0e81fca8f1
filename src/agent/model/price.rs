//! The price list of models, in US dollars per million tokens, of November 2026. Only models whose provider lists
//! one price for each kind of token are in it, whatever the length of a request; the configuration can add others
//! and override these. A model that is not listed has no price, and its runs no cost.

use crate::transcript::{Cache, Tokens};

/// The price of a million tokens of each kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    pub input: f64,
    /// Reasoning is billed as output.
    pub output: f64,
    /// Read from the provider's prompt cache.
    pub cached_input: f64,
    pub cache_write: f64,
}

/// Input, output, read from the cache, written to it.
const ANTHROPIC: [(&str, [f64; 4]); 11] = [
    ("claude-haiku-4-5", [1.0, 5.0, 0.1, 1.25]),
    ("claude-opus-4-5", [5.0, 25.0, 0.5, 6.25]),
    ("claude-opus-4-6", [5.0, 25.0, 0.5, 6.25]),
    ("claude-opus-4-7", [5.0, 25.0, 0.5, 6.25]),
    ("claude-opus-4-8", [5.0, 25.0, 0.5, 6.25]),
    ("claude-opus-5", [5.0, 25.0, 0.5, 6.25]),
    ("claude-opus-5-5", [4.0, 20.0, 0.2, 5.0]),
    ("claude-sonnet-4-5", [3.0, 15.0, 0.3, 3.75]),
    ("claude-sonnet-4-6", [3.0, 15.0, 0.3, 3.75]),
    ("claude-sonnet-5", [2.0, 10.0, 0.2, 2.5]),
    ("claude-sonnet-5-5", [2.0, 10.0, 0.1, 2.5]),
];
/// Google charges for cache writes as for input.
const GEMINI: [(&str, [f64; 4]); 8] = [
    ("gemini-2.5-flash", [0.3, 2.5, 0.03, 0.3]),
    ("gemini-2.5-flash-lite", [0.1, 0.4, 0.01, 0.1]),
    ("gemini-3.5-flash", [1.5, 9.0, 0.15, 1.5]),
    ("gemini-3.5-flash-lite", [0.3, 2.5, 0.03, 0.3]),
    ("gemini-3.6-flash", [0.75, 3.75, 0.075, 0.75]),
    ("gemini-3.7-flash", [0.75, 3.75, 0.075, 0.75]),
    ("gemini-3.8-flash", [0.75, 3.75, 0.075, 0.75]),
    ("gemini-4-argon", [2.0, 10.0, 0.1, 2.0]),
];
/// OpenAI does not charge for cache writes: those tokens cost as much as input.
const OPENAI: [(&str, [f64; 4]); 12] = [
    ("gpt-4.1", [2.0, 8.0, 0.5, 2.0]),
    ("gpt-4.1-mini", [0.4, 1.6, 0.1, 0.4]),
    ("gpt-4o", [2.5, 10.0, 1.25, 2.5]),
    ("gpt-4o-mini", [0.15, 0.6, 0.075, 0.15]),
    ("gpt-5", [1.25, 10.0, 0.125, 1.25]),
    ("gpt-5-mini", [0.25, 2.0, 0.025, 0.25]),
    ("gpt-5-nano", [0.05, 0.4, 0.005, 0.05]),
    ("gpt-5.1", [1.25, 10.0, 0.125, 1.25]),
    ("gpt-5.2", [1.75, 14.0, 0.175, 1.75]),
    ("gpt-5.3-codex", [1.75, 14.0, 0.175, 1.75]),
    ("gpt-5.4-mini", [0.75, 4.5, 0.075, 0.75]),
    ("gpt-5.4-nano", [0.2, 1.25, 0.02, 0.2]),
];

impl Price {
    pub const FREE: Price = Price { input: 0.0, output: 0.0, cached_input: 0.0, cache_write: 0.0 };

    /// A price without a discount for cached tokens: they cost as much as other input.
    pub fn flat(input: f64, output: f64) -> Price {
        Price { input, output, cached_input: input, cache_write: input }
    }

    /// What these tokens cost, in dollars.
    pub fn of(self, tokens: Tokens) -> f64 {
        let Tokens { input, output, reasoning, cache: Cache { read, write } } = tokens;
        let dollars = self.input * input as f64
            + self.cached_input * read as f64
            + self.cache_write * write as f64
            + self.output * output.saturating_add(reasoning) as f64;
        dollars / 1e6
    }

    /// The listed price of a model at its own provider.
    pub(super) fn known(provider: &str, model: &str) -> Option<Price> {
        let table: &[(&str, [f64; 4])] = match provider {
            "anthropic" => &ANTHROPIC,
            "gemini" => &GEMINI,
            "openai" | "openai-responses" => &OPENAI,
            _ => return None,
        };
        let name = without_date(model);
        let (_, [input, output, cached_input, cache_write]) =
            *table.iter().find(|(known, _)| *known == name)?;
        Some(Price { input, output, cached_input, cache_write })
    }
}

/// The model's name without its release date (`-20250929` or `-2025-08-07`): a dated snapshot costs what
/// the model costs.
fn without_date(model: &str) -> &str {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let mut rest = model;
    let mut date = String::new();
    // Collects groups of digits from the end until they make a date of eight digits; `gpt-4.1` and the
    // like have fewer and stay as they are.
    while let Some((before, last)) = rest.rsplit_once('-').filter(|(_, last)| digits(last)) {
        date.insert_str(0, last);
        if date.len() == 8 {
            return before;
        }
        rest = before;
    }
    model
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dated_model_name_has_the_price_of_the_undated_one() {
        for (model, expected) in [
            ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
            ("claude-sonnet-4-5", "claude-sonnet-4-5"),
            ("claude-sonnet-5", "claude-sonnet-5"),
            ("gpt-5-2025-08-07", "gpt-5"),
            ("gpt-5", "gpt-5"),
            ("", ""),
        ] {
            assert_eq!(without_date(model), expected);
        }
        let sonnet = Price { input: 3.0, output: 15.0, cached_input: 0.3, cache_write: 3.75 };
        let known = |provider, model| Price::known(provider, model);
        assert_eq!(known("anthropic", "claude-sonnet-4-5-20250929"), Some(sonnet));
        assert_eq!(known("openai-responses", "gpt-5"), known("openai", "gpt-5-2025-08-07"));
        assert_eq!(known("openai", "claude-sonnet-4-5"), None);
        assert_eq!(known("openrouter", "gpt-5"), None);
        let flash = Price { cached_input: 0.075, ..Price::flat(0.75, 3.75) };
        assert_eq!(known("gemini", "gemini-3.8-flash"), Some(flash));
    }

    #[test]
    fn every_kind_of_token_has_its_price() {
        let price = Price { input: 2.0, output: 10.0, cached_input: 0.5, cache_write: 4.0 };
        let million = 1_000_000;
        let cache = Cache { read: 4 * million, write: million };
        let tokens = Tokens { input: million, output: million, reasoning: million, cache };
        assert_eq!(price.of(tokens), 2.0 + 10.0 + 10.0 + 4.0 * 0.5 + 4.0);
        assert_eq!(Price::flat(2.0, 10.0).of(tokens), 2.0 + 20.0 + 5.0 * 2.0);
        assert_eq!(Price::FREE.of(tokens), 0.0);
    }
}
