//! Parses the text of an agent file: front matter between lines of `---`, then the prompt. Unknown keys
//! are ignored, because the files are written for other programs as well.

use super::grants::read_grants;
use super::permission::read_permissions;
use super::yaml::Yaml;
use super::{Definition, Error, Source};
use crate::text;

const LONGEST_NAME: usize = 100;

/// What a file defines.
pub(super) enum AgentFile {
    Agent(Definition),
    /// Removes the agent of that name that another directory defines.
    Disabled {
        name: String,
    },
}

/// `file_name` is the agent's name unless the front matter has one.
pub(super) fn parse(text: &str, file_name: &str, source: Source) -> Result<AgentFile, Error> {
    // Editors on Windows write a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (front, body) = split(text)?;
    let front = front.map_or(Ok(Yaml::Nothing), Yaml::read).map_err(Error::Syntax)?;
    let (Yaml::Map(_) | Yaml::Nothing) = front else {
        return Err(Error::NotKeys(front.to_string()));
    };
    let name = front.text("name")?.unwrap_or_else(|| file_name.to_owned());
    // Before the prompt: a file that only switches an agent off needs none.
    check_name(&name)?;
    if front.flag("disable")? || front.flag("disabled")? {
        return Ok(AgentFile::Disabled { name });
    }
    let prompt = body.trim().replace("\r\n", "\n");
    if prompt.is_empty() {
        return Err(Error::NoPrompt);
    }
    let description = front.text("description")?.unwrap_or_else(|| first_line(&prompt));
    let (tools, rules) = read_permissions(&front)?;
    let (model, grants) = (model_of(&front), read_grants(&front)?);
    Ok(AgentFile::Agent(Definition {
        name,
        description,
        prompt,
        model,
        tools,
        rules,
        grants,
        source,
    }))
}

/// Splits off the front matter, if there is any.
fn split(text: &str) -> Result<(Option<&str>, &str), Error> {
    let mut lines = text.split_inclusive('\n');
    let opening = lines.next().unwrap_or_default();
    if opening.trim_end() != "---" {
        return Ok((None, text));
    }
    let start = opening.len();
    let mut end = start;
    for line in lines {
        if line.trim_end() == "---" {
            return Ok((Some(&text[start..end]), &text[end + line.len()..]));
        }
        end += line.len();
    }
    Err(Error::Unclosed)
}

/// Checks an agent's name: it is typed in a shell, shown in a terminal, and may become a part of a path.
fn check_name(name: &str) -> Result<(), Error> {
    let is_fit = |word: &str| !["", ".", ".."].contains(&word) && word.trim() == word;
    let is_odd = |c: char| c.is_control() || is_invisible(c) || c == '\\';
    let is_short = name.chars().count() <= LONGEST_NAME;
    let is_option = name.starts_with('-');
    if is_short && !is_option && !name.contains(is_odd) && name.split('/').all(is_fit) {
        return Ok(());
    }
    Err(Error::BadName(text::head(name, LONGEST_NAME).escape_debug().to_string()))
}

/// Characters without a visible shape, some of which reorder the text around them. Two names that differ
/// only in these look the same.
pub fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{3164}')
        || matches!(c, '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}')
        || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}')
        || matches!(c, '\u{feff}' | '\u{ffa0}' | '\u{e0000}'..='\u{e0fff}')
}

fn first_line(prompt: &str) -> String {
    let line = prompt.lines().next().unwrap_or_default();
    line.trim_start_matches('#').trim().to_owned()
}

/// The model, as `provider/model` or an alias. `inherit` (Claude) means the default.
fn model_of(front: &Yaml) -> Option<String> {
    let Some(Yaml::Text(model)) = front.get("model") else { return None };
    let model = model.trim();
    let (provider, name) = model.split_once('/').unwrap_or((model, model));
    let is_named = !provider.is_empty() && !name.is_empty() && model != "inherit";
    (is_named && !model.contains(char::is_whitespace)).then(|| model.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::{Action, Grants, Rule, Tools};
    use super::*;

    fn read(text: &str) -> Result<AgentFile, String> {
        parse(text, "file", Source::BuiltIn).map_err(|error| error.to_string())
    }

    fn agent(text: &str) -> Definition {
        match read(text) {
            Ok(AgentFile::Agent(agent)) => agent,
            Ok(AgentFile::Disabled { .. }) => panic!("disabled: {text}"),
            Err(error) => panic!("{error}: {text}"),
        }
    }

    fn with(front: &str) -> String {
        format!("---\n{front}\n---\nDo it.\n")
    }

    #[test]
    fn an_agent_file_is_read_with_any_line_ending_and_with_a_byte_order_mark() {
        let front = "description: Reviews\nmodel: openai/gpt-5\ntools: [read, grep, bash]\n\
                     permission:\n  bash: ask\ncolor: red";
        let expected = Definition {
            name: "file".to_owned(),
            description: "Reviews".to_owned(),
            prompt: "Do it.".to_owned(),
            model: Some("openai/gpt-5".to_owned()),
            tools: ["read", "grep", "bash"].into_iter().collect(),
            rules: vec![Rule::new("bash", "*", Action::Ask)],
            grants: Grants::default(),
            source: Source::BuiltIn,
        };
        assert_eq!(agent(&with(front)), expected);
        assert_eq!(agent(&with(front).replace('\n', "\r\n")), expected);
        assert_eq!(agent(&format!("\u{feff}{}", with(front))), expected);
    }

    #[test]
    fn without_front_matter_the_first_line_is_the_description() {
        let check = |text: &str, description: &str, prompt: &str| {
            let agent = agent(text);
            let found = (agent.name.as_str(), agent.description.as_str(), agent.prompt.as_str());
            assert_eq!(found, ("file", description, prompt), "{text}");
            assert_eq!(agent.tools, Tools::all());
        };
        check("# Reviewer\n\nYou review.\n", "Reviewer", "# Reviewer\n\nYou review.");
        check("\n  You review.", "You review.", "You review.");
        check("---\n---\nYou review.\n---\nWell.", "You review.", "You review.\n---\nWell.");
        check("---\nmode: all\n---\n\nYou review.", "You review.", "You review.");
    }

    #[test]
    fn a_model_is_given_with_its_provider_or_by_a_short_name() {
        let check = |model: &str, expected: Option<&str>| {
            let found = agent(&with(&format!("model: {model}"))).model;
            assert_eq!(found.as_deref(), expected, "{model}");
        };
        check("openai/gpt-5", Some("openai/gpt-5"));
        check("openrouter/meta/llama", Some("openrouter/meta/llama"));
        check("sonnet", Some("sonnet"));
        check("claude-opus-4", Some("claude-opus-4"));
        for name in ["inherit", "/x", "x/", "a b/c", "", "[a/b]"] {
            check(name, None);
        }
    }

    #[test]
    fn primary_agents_are_kept_and_disabled_ones_are_not() {
        assert_eq!(agent(&with("mode: primary")).name, "file");
        assert_eq!(agent(&with("disable: false")).name, "file");
        for text in ["---\ndisable: true\n---", "---\nname: x\ndisabled: true\n---\nDo it."] {
            assert!(matches!(read(text), Ok(AgentFile::Disabled { .. })), "{text}");
        }
    }

    #[test]
    fn a_file_that_is_not_an_agent_is_refused_with_the_reason() {
        let check = |text: &str, expected: &str| match read(text) {
            Ok(_) => panic!("it was read: {text}"),
            Err(error) => assert_eq!(error, expected, "{text}"),
        };
        check(
            "---\nname: x\nDo it.",
            "has front matter without an end; close it with a line of `---`",
        );
        check("", "has no prompt; write it below the front matter");
        check("---\nname: x\n---\n \n", "has no prompt; write it below the front matter");
        check(&with("- a"), "has front matter that is a list; give keys and values");
        check(
            &with("tools: [read"),
            "has front matter that is not valid YAML: unclosed bracket '[' at line 2, column 8",
        );
        for (front, expected) in [
            ("description: [a]", "`description` is a list; give a text"),
            ("disable: maybe", "`disable` is `maybe`; give `true` or `false`"),
            ("tools: {write: no}", "`tools.write` is `no`; give `true` or `false`"),
            (
                "tools: true",
                "`tools` is `true`; give names of tools, in a list or with commas between them",
            ),
            ("tools: Bash(git", "`tools` is `Bash(git`; give a closing `)`"),
            ("permission: never", "`permission` is `never`; give `allow`, `ask` or `deny`"),
            (
                "permission: {bash: {rm: no}}",
                "`permission.bash.rm` is `no`; give `allow`, `ask` or `deny`",
            ),
            ("permission: {edit: }", "`permission.edit` is nothing; give `allow`, `ask` or `deny`"),
            (
                "permissions: [deny]",
                "`permissions` is `deny`; give rules with `action`, `resource` and `effect`",
            ),
        ] {
            check(&with(front), &format!("says that {expected}"));
        }
        let long = format!("permission: {{bash: {{'{}': deny}}}}", "x".repeat(1001));
        let expected = "a pattern of more than 1000 bytes; give shorter ones";
        check(&with(&long), &format!("says that `permission` is {expected}"));
    }

    #[test]
    fn an_agent_name_has_no_control_characters_and_is_no_path_traversal() {
        for name in ["x", "team/reviewer", "Frontend Developer", "C++", "prüfer", "a.b"] {
            assert_eq!(agent(&with(&format!("name: {name}"))).name, name);
        }
        let long = "x".repeat(101);
        for name in [
            "\"a\\e[31mb\"",
            "\"a\\nb\"",
            "a\u{202e}b",
            "a\u{61c}b",
            "explore\u{fe0f}",
            "../x",
            "a/../b",
            "/etc/x",
            "a//b",
            "a/",
            ".",
            "'a\\b'",
            "-x",
            "a/ b",
            &long,
        ] {
            let error = read(&with(&format!("name: {name}"))).err().unwrap_or_default();
            assert!(error.starts_with("would be named `"), "{name}: {error}");
            assert!(!error.contains(char::is_control));
        }
    }
}
