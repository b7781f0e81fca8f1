//! Model aliases: short names such as `sonnet` and bare model names, resolved to `provider/model`. The
//! same in an agent file, in a call and in the configuration.

use std::collections::BTreeMap;

/// The short names that Claude's agent files use.
const ALIASES: [(&str, &str); 3] = [
    ("haiku", "anthropic/claude-haiku-5-5"),
    ("opus", "anthropic/claude-opus-5-5"),
    ("sonnet", "anthropic/claude-sonnet-5-5"),
];

/// Prefixes of model names that belong to one provider only.
const FAMILIES: [(&str, &str); 3] =
    [("claude-", "anthropic"), ("gemini-", "gemini"), ("gpt-", "openai")];

/// A name as `provider/model`; `None` when its provider cannot be told. `own` are the user's aliases,
/// which come first.
pub(super) fn resolve(name: &str, own: &BTreeMap<String, String>) -> Option<String> {
    if let Some(model) = own.get(name) {
        return Some(model.clone());
    }
    if name.contains('/') {
        return Some(name.to_owned());
    }
    let alias = ALIASES.iter().find(|(alias, _)| *alias == name);
    let family = FAMILIES.iter().find(|(prefix, _)| name.starts_with(prefix));
    match (alias, family) {
        (Some((_, model)), _) => Some((*model).to_owned()),
        (None, Some((_, provider))) => Some(format!("{provider}/{name}")),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::model::Price;

    #[test]
    fn short_names_and_names_that_only_one_provider_has_are_resolved() {
        let own = BTreeMap::from([
            ("opus".to_owned(), "work/large".to_owned()),
            ("fast".to_owned(), "ollama/small".to_owned()),
        ]);
        for (name, expected) in [
            ("openai/gpt-5", Some("openai/gpt-5")),
            ("sonnet", Some("anthropic/claude-sonnet-5-5")),
            ("haiku", Some("anthropic/claude-haiku-5-5")),
            ("opus", Some("work/large")),
            ("fast", Some("ollama/small")),
            ("claude-sonnet-4-5", Some("anthropic/claude-sonnet-4-5")),
            ("gpt-5", Some("openai/gpt-5")),
            ("gemini-3-pro", Some("gemini/gemini-3-pro")),
            ("inherit", None),
            ("large", None),
            ("", None),
        ] {
            assert_eq!(resolve(name, &own).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn the_short_names_of_models_with_one_price_have_it() {
        let priced = |alias: &str| {
            let name = resolve(alias, &BTreeMap::new()).unwrap();
            let (provider, model) = name.split_once('/').unwrap();
            Price::known(provider, model).is_some()
        };
        assert_eq!(["haiku", "opus", "sonnet"].map(priced), [false, true, true]);
    }
}
