//! Reads tools and permission rules from front matter. Three dialects (ours, OpenCode's, Claude's) differ
//! in the shape of `tools` and `permission`, so the shape decides and no file has to say which one it is.
//! Unknown tools are ignored; something that would forbid and cannot be understood is an error, because
//! ignoring it would allow.

use super::yaml::Yaml;
use super::{Action, EXTERNAL_DIRECTORY, Error, Rule, TOOLS, Tools, pattern};

/// In bytes; the time for matching grows with it.
const LONGEST_PATTERN: usize = 1000;

const ACTIONS: &str = "`allow`, `ask` or `deny`";

/// The tools of an agent and its rules, in order of precedence.
pub(super) fn read_permissions(front: &Yaml) -> Result<(Tools, Vec<Rule>), Error> {
    let (mut tools, mut rules) = match front.get("tools") {
        None => (Tools::all(), Vec::new()),
        Some(Yaml::Map(switches)) => (switched(switches)?, Vec::new()),
        Some(names) => granted(&entries("tools", names)?),
    };
    for key in ["permission", "permissions"] {
        if let Some(value) = front.get(key) {
            add_rules(key, value, &mut rules)?;
        }
    }
    // Last, because the last matching rule wins and these forbid.
    if let Some(names) = front.get("disallowedTools") {
        for Entry { tool, only } in entries("disallowedTools", names)? {
            match only {
                None => tools.set(tool, false),
                Some(pattern) => rules.push(Rule::new(tool, pattern, Action::Deny)),
            }
        }
    }
    if rules.iter().any(|rule| rule.pattern.len() > LONGEST_PATTERN) {
        let found = format!("a pattern of more than {LONGEST_PATTERN} bytes");
        return Err(Error::Unfit { key: "permission".to_owned(), found, expected: "shorter ones" });
    }
    Ok((tools, rules))
}

/// OpenCode's switches, `{write: false, "mcp_*": false}`. There `edit` and `write` are one permission;
/// here a switch for one also sets the other, unless that has its own.
fn switched(switches: &[(String, Yaml)]) -> Result<Tools, Error> {
    let mut tools = Tools::all();
    let mut named = Tools::default();
    for (key, value) in switches {
        for tool in known(key).into_iter().chain(wildcard(key)) {
            let Yaml::Flag(on) = value else {
                return Err(value.unfit(&format!("tools.{key}"), "`true` or `false`"));
            };
            tools.set(tool, *on);
        }
        named.0.extend(known(key));
    }
    for (one, other) in [("edit", "write"), ("write", "edit")] {
        if named.contains(one) && !named.contains(other) {
            tools.set(other, tools.contains(one));
        }
    }
    Ok(tools)
}

/// An entry of Claude's lists: `Read` or `Bash(git diff:*)`.
struct Entry {
    tool: &'static str,
    only: Option<String>,
}

/// The entries of a list, or of a text with commas.
fn entries(key: &str, names: &Yaml) -> Result<Vec<Entry>, Error> {
    let expected = "names of tools, in a list or with commas between them";
    let mut found = Vec::new();
    let items = match names {
        Yaml::List(items) => items.as_slice(),
        Yaml::Text(_) => std::slice::from_ref(names),
        Yaml::Nothing | Yaml::Flag(_) | Yaml::Map(_) => return Err(names.unfit(key, expected)),
    };
    for item in items {
        let Yaml::Text(words) = item else { return Err(item.unfit(key, expected)) };
        for word in split_at_commas(words) {
            match word.split_once('(') {
                None if word == "*" => {
                    found.extend(TOOLS.map(|tool| Entry { tool, only: None }));
                }
                None => found.extend(known(word).map(|tool| Entry { tool, only: None })),
                Some((name, limits)) => {
                    let unclosed = || Yaml::Text(word.to_owned()).unfit(key, "a closing `)`");
                    let limits = limits.strip_suffix(')').ok_or_else(unclosed)?;
                    found.extend(known(name).map(|tool| Entry { tool, only: only(tool, limits) }));
                }
            }
        }
    }
    Ok(found)
}

/// Splits at commas outside of parentheses.
fn split_at_commas(words: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    let between = words.split(move |c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    });
    between.map(str::trim).filter(|word| !word.is_empty())
}

/// What stands in Claude's parentheses, as a pattern of ours; `None` if it limits nothing.
fn only(tool: &str, limits: &str) -> Option<String> {
    let limits = limits.trim();
    let pattern = match (tool, limits.strip_suffix(":*")) {
        ("bash", Some(start)) => format!("{start}*"),
        ("bash", None) => limits.to_owned(),
        // In Claude's files `//a` is absolute, while `/a` and `./a` are relative to the workspace.
        _ => match limits.strip_prefix("//") {
            Some(absolute) => format!("/{absolute}"),
            None => limits.trim_start_matches("./").trim_start_matches('/').to_owned(),
        },
    };
    Some(pattern).filter(|pattern| !["", "*", "**"].contains(&pattern.as_str()))
}

/// Claude's list of granted tools. One that is granted only with limits is denied beyond them.
fn granted(entries: &[Entry]) -> (Tools, Vec<Rule>) {
    let tools: Tools = entries.iter().map(|entry| entry.tool).collect();
    let mut rules = Vec::new();
    for tool in tools.iter() {
        let grants = entries.iter().filter(|entry| entry.tool == tool);
        let limits: Option<Vec<&String>> = grants.map(|entry| entry.only.as_ref()).collect();
        // `None`: one of the entries grants the tool without limits.
        let Some(limits) = limits else { continue };
        rules.push(Rule::new(tool, "*", Action::Deny));
        rules.extend(limits.into_iter().map(|only| Rule::new(tool, only, Action::Allow)));
    }
    (tools, rules)
}

/// OpenCode's `permission`: one action for all tools, an action per tool, actions per tool and pattern, or
/// the newer list of rules.
fn add_rules(key: &str, value: &Yaml, rules: &mut Vec<Rule>) -> Result<(), Error> {
    match value {
        Yaml::Text(_) => rules.push(Rule::new("*", "*", action(key, value)?)),
        Yaml::Map(tools) => {
            for (tool, value) in tools {
                let governed = governed(tool);
                // A tool that we do not have; its value may have any shape.
                if governed.is_empty() {
                    continue;
                }
                let key = format!("{key}.{tool}");
                match value {
                    Yaml::Map(patterns) => {
                        for (pattern, value) in patterns {
                            let action = action(&format!("{key}.{pattern}"), value)?;
                            add_rule(&governed, pattern, action, rules);
                        }
                    }
                    other => add_rule(&governed, "*", action(&key, other)?, rules),
                }
            }
        }
        Yaml::List(items) => {
            for item in items {
                let (Some(tool), Some(effect)) = (item.get("action"), item.get("effect")) else {
                    return Err(item.unfit(key, "rules with `action`, `resource` and `effect`"));
                };
                let tool = match tool {
                    Yaml::Text(tool) => tool,
                    other => return Err(other.unfit(&format!("{key}.action"), "a text")),
                };
                let pattern = item.text("resource")?.unwrap_or_else(|| "*".to_owned());
                let action = action(&format!("{key}.effect"), effect)?;
                add_rule(&governed(tool), &pattern, action, rules);
            }
        }
        Yaml::Nothing | Yaml::Flag(_) => return Err(value.unfit(key, ACTIONS)),
    }
    Ok(())
}

fn add_rule(tools: &[&str], pattern: &str, action: Action, rules: &mut Vec<Rule>) {
    for tool in tools {
        // In a command, `~` is a word of the shell's and not a path of ours.
        let pattern = if *tool == "bash" { pattern.to_owned() } else { at_home(pattern, action) };
        rules.push(Rule::new(tool, pattern, action));
    }
}

/// `~` and `$HOME` in a pattern. The home directory is not known here, so a rule that forbids holds for
/// any user's; one that allows stays literal and matches nothing.
fn at_home(pattern: &str, action: Action) -> String {
    let rest = pattern.strip_prefix('~').or_else(|| pattern.strip_prefix("$HOME"));
    match rest {
        Some(rest) if action != Action::Allow && (rest.is_empty() || rest.starts_with('/')) => {
            format!("/*{rest}")
        }
        Some(_) | None => pattern.to_owned(),
    }
}

fn action(key: &str, value: &Yaml) -> Result<Action, Error> {
    match value {
        Yaml::Text(text) if text == "allow" => Ok(Action::Allow),
        Yaml::Text(text) if text == "ask" => Ok(Action::Ask),
        Yaml::Text(text) if text == "deny" => Ok(Action::Deny),
        other => Err(other.unfit(key, ACTIONS)),
    }
}

/// The tools that a key of `permission` governs; none for tools that are not ours.
fn governed(key: &str) -> Vec<&'static str> {
    match known(key) {
        _ if key == "*" => vec!["*"],
        _ if key == EXTERNAL_DIRECTORY => vec![EXTERNAL_DIRECTORY],
        Some("edit") => vec!["edit", "write"],
        Some(tool) => vec![tool],
        None => wildcard(key).collect(),
    }
}

fn wildcard(key: &str) -> impl Iterator<Item = &'static str> {
    TOOLS.into_iter().filter(move |tool| key.contains('*') && pattern::matches(key, tool))
}

/// Our name of a tool, by its name in any dialect.
fn known(name: &str) -> Option<&'static str> {
    let name = name.trim().to_ascii_lowercase();
    let ours = match name.as_str() {
        "ls" => "list",
        "multiedit" | "patch" | "apply_patch" => "edit",
        "shell" => "bash",
        "todowrite" | "todoread" => "todo",
        other => other,
    };
    TOOLS.into_iter().find(|tool| *tool == ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `expected` are the tools, then the rules, one a line.
    fn check(front: &str, expected: &[&str]) {
        let (tools, rules) = read_permissions(&Yaml::read(front).unwrap()).unwrap();
        let mut found = vec![tools.iter().collect::<Vec<_>>().join(" ")];
        found.extend(rules.iter().map(|rule| {
            let action = format!("{:?}", rule.action).to_lowercase();
            format!("{} {} {action}", rule.tool, rule.pattern)
        }));
        assert_eq!(found, expected, "{front}");
    }

    const ALL: &str = "read list glob grep edit write bash todo";

    #[test]
    fn tools_are_a_list_or_separated_by_commas() {
        check("name: x", &[ALL]);
        check("tools:", &[ALL]);
        check("tools: []", &[""]);
        check("tools: [read, grep]", &["read grep"]);
        check("tools: Read, Grep, Glob, Bash", &["read glob grep bash"]);
        check("tools:\n  - Read\n  - LS", &["read list"]);
        check("tools: MultiEdit, Write, TodoWrite", &["edit write todo"]);
        check("tools: WebFetch, mcp__docs__find, Task(x, y)", &[""]);
        check("tools: \"*\"", &[ALL]);
        check("tools: *", &[ALL]);
    }

    #[test]
    fn a_tool_granted_with_limits_is_denied_beyond_them() {
        check("tools: Bash(git diff:*)", &["bash", "bash * deny", "bash git diff* allow"]);
        check(
            "tools: Read, Bash(git diff:*), Bash(make test), Edit(./docs/**)",
            &[
                "read edit bash",
                "edit * deny",
                "edit docs/** allow",
                "bash * deny",
                "bash git diff* allow",
                "bash make test allow",
            ],
        );
        check("tools: [Bash, 'Bash(git diff:*)']", &["bash"]);
        check("tools: Bash(*)", &["bash"]);
        check("tools: Read(//etc/*)", &["read", "read * deny", "read /etc/* allow"]);
    }

    #[test]
    fn tools_can_be_disallowed_one_by_one() {
        check("disallowedTools: Write, Edit, Bash", &["read list glob grep todo"]);
        check("tools: Read, Bash\ndisallowedTools: [Bash]", &["read"]);
        check("tools: Bash\ndisallowedTools: Bash(git push:*)", &["bash", "bash git push* deny"]);
    }

    #[test]
    fn tools_can_be_switched_one_by_one() {
        check("tools: {}", &[ALL]);
        check("tools: {write: false, bash: true}", &["read list glob grep bash todo"]);
        check("tools: {edit: false}", &["read list glob grep bash todo"]);
        check("tools: {edit: false, write: true}", &["read list glob grep write bash todo"]);
        check("tools: {patch: false, todowrite: false}", &["read list glob grep bash"]);
        check("tools: {mymcp_*: false, webfetch: maybe}", &[ALL]);
        check("tools: {\"*\": false, read: true, g*: true}", &["read glob grep"]);
        check("tools: {read: true, \"*\": false}", &[""]);
    }

    #[test]
    fn permissions_are_rules_in_the_order_they_are_written() {
        check("permission: deny", &[ALL, "* * deny"]);
        check(
            "permission: {edit: deny, webfetch: deny, external_directory: ask}",
            &[ALL, "edit * deny", "write * deny", "external_directory * ask"],
        );
        check(
            "permission:\n  bash: {\"git *\": allow, \"*\": ask}\n  \"*\": allow\n  g*: deny",
            &[ALL, "bash git * allow", "bash * ask", "* * allow", "glob * deny", "grep * deny"],
        );
        check("permission: {webfetch: sometimes}", &[ALL]);
        check(
            "tools: Bash(make:*)\npermission: {bash: {make install: deny}}",
            &["bash", "bash * deny", "bash make* allow", "bash make install deny"],
        );
        check(
            "permissions:\n  - {action: shell, resource: git push *, effect: deny}\n  \
             - {action: edit, effect: ask}\n  - {action: subagent, resource: x, effect: deny}",
            &[ALL, "bash git push * deny", "edit * ask", "write * ask"],
        );
    }

    #[test]
    fn without_a_known_home_a_deny_rule_matches_any_home_and_an_allow_rule_none() {
        check(
            "permission: {external_directory: {~/.ssh/*: deny, $HOME: ask, ~/src/*: allow}}",
            &[
                ALL,
                "external_directory /*/.ssh/* deny",
                "external_directory /* ask",
                "external_directory ~/src/* allow",
            ],
        );
        check("permission: {bash: {~/run: deny}}", &[ALL, "bash ~/run deny"]);
    }
}
