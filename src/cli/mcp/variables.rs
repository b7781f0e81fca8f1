//! The environment variables that our server reads, for clients that filter the environment of the servers they
//! start (Codex, Gemini CLI). Without them the server would run without the user's keys and settings.

/// Secrets.
pub(super) const KEYS: [&str; 6] = [
    "ANTHROPIC_API_KEY",
    "GEMINI_API_KEY",
    "GOOGLE_API_KEY",
    "OPENAI_API_KEY",
    "OPENCODE_SERVER_PASSWORD",
    "OPENROUTER_API_KEY",
];

const OTHERS: [&str; 21] = [
    "ASYNCAGENTS_HOME",
    "ASYNCAGENTS_CONFIG",
    "ASYNCAGENTS_HOST",
    "ASYNCAGENTS_MODEL",
    "ASYNCAGENTS_LOG",
    "ASYNCAGENTS_PARENT",
    "ASYNCAGENTS_OPENCODE_URL",
    "ASYNCAGENTS_API_ENABLED",
    "ASYNCAGENTS_API_HOST",
    "ASYNCAGENTS_API_PORT",
    "ANTHROPIC_BASE_URL",
    "GEMINI_BASE_URL",
    "OLLAMA_HOST",
    "OPENAI_BASE_URL",
    "OPENCODE_SERVER_USERNAME",
    "OPENROUTER_BASE_URL",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NO_PROXY",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
];

pub(super) fn all() -> Vec<&'static str> {
    OTHERS.iter().chain(&KEYS).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_of_a_provider_is_passed_to_the_server() {
        let words = include_str!("../../config/providers.rs").split('"');
        let is_variable = |word: &&str| {
            word.contains('_') && word.chars().all(|c| c.is_ascii_uppercase() || c == '_')
        };
        let missing: Vec<&str> =
            words.filter(is_variable).filter(|name| !all().contains(name)).collect();
        assert_eq!(missing, Vec::<&str>::new());
    }
}
