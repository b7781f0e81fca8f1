//! Edits Codex's `config.toml` line by line: our server is added or removed, everything else is kept
//! byte for byte. The result is parsed and compared with what it has to say, because a line-based
//! edit does not understand all of TOML; what it gets wrong is refused. Pure.

use toml::{Table, Value};

use super::{NAME, Server, variables};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    #[error("it is not valid TOML: {0}")]
    NoToml(String),
    #[error(
        "`mcp_servers.{NAME}` is not a section of plain lines; remove it by hand and try again"
    )]
    NoSection,
    #[error("{}", super::OTHER_WAY)]
    OtherWay,
}

/// What our section says.
struct Section {
    always: Vec<(&'static str, Value)>,
    /// Set when they are missing.
    defaults: Vec<(&'static str, Value)>,
    /// Of a section for the other transport.
    not_with: &'static str,
}

impl Section {
    fn of(server: &Server) -> Section {
        let approval = ("default_tools_approval_mode", Value::from("approve"));
        match server {
            Server::Program(program) => Section {
                always: vec![
                    ("command", Value::from(*program)),
                    ("args", Value::from(vec!["mcp"])),
                ],
                defaults: vec![approval, ("env_vars", Value::from(variables::all()))],
                not_with: "url",
            },
            Server::Address { url, authorization } => Section {
                always: vec![
                    ("url", Value::from(url.as_str())),
                    (
                        "http_headers",
                        Value::Table(Table::from_iter([(
                            "Authorization".to_owned(),
                            Value::from(authorization.as_str()),
                        )])),
                    ),
                ],
                defaults: vec![approval],
                not_with: "command",
            },
        }
    }

    /// Whether a line sets one of the keys that are always ours.
    fn sets_always(&self, line: &str) -> bool {
        let key = line.split('=').next().map(str::trim);
        self.always.iter().any(|(name, _)| key == Some(name))
    }
}

/// Adds our section, or brings it up to date. Keys that the user has put into it are kept, and so are the values
/// of the defaults that the user may have chosen otherwise.
pub(super) fn add_server(text: &str, server: &Server) -> Result<String, Error> {
    let mut expected = parse(text)?;
    let had = entry(&mut expected).ok_or(Error::NoSection)?;
    let section = Section::of(server);
    if had.contains_key(section.not_with) {
        return Err(Error::OtherWay);
    }
    let mut lines: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
    let mut ours = String::new();
    for (name, value) in &section.always {
        ours.push_str(&line(name, value));
        had.insert((*name).to_owned(), value.clone());
    }
    for (name, value) in section.defaults.iter().filter(|(name, _)| !had.contains_key(*name)) {
        ours.push_str(&line(name, value));
    }
    for (name, value) in &section.defaults {
        had.entry(*name).or_insert(value.clone());
    }
    match lines.iter().position(|line| line.trim() == header()) {
        None => lines.push(format!("{}{}\n{ours}", gap(text), header())),
        Some(first) => {
            let end = end_of_section(&lines, first);
            let rest: String =
                lines.drain(first + 1..end).filter(|line| !section.sets_always(line)).collect();
            lines.splice(first..=first, [format!("{}\n{ours}{rest}", lines[first].trim_end())]);
        }
    }
    checked(lines.concat(), &expected)
}

/// `None`: there is no such server.
pub(super) fn remove_server(text: &str) -> Result<Option<String>, Error> {
    let mut expected = parse(text)?;
    let Some(servers) = expected.get_mut("mcp_servers").and_then(Value::as_table_mut) else {
        return Ok(None);
    };
    if servers.remove(NAME).is_none() {
        return Ok(None);
    }
    let mut left: Vec<&str> = Vec::new();
    let mut removed: Vec<&str> = Vec::new();
    for line in text.split_inclusive('\n') {
        let begins = line.trim_start().starts_with('[');
        let is_ours = is_our_header(line);
        if begins && !is_ours {
            end_section(&mut removed, &mut left);
        }
        match is_ours || (!begins && !removed.is_empty()) {
            true => removed.push(line),
            false => left.push(line),
        }
    }
    end_section(&mut removed, &mut left);
    checked(left.concat(), &expected).map(Some)
}

/// Drops the lines of our section. Comments and blank lines at its end belong to the section that follows, and
/// stay; of two blank lines that meet, one goes.
fn end_section<'a>(removed: &mut Vec<&'a str>, left: &mut Vec<&'a str>) {
    let is_last_of_ours = |line: &&str| !line.trim().is_empty() && !line.trim().starts_with('#');
    let Some(last) = removed.iter().rposition(is_last_of_ours) else { return };
    let tail = removed.split_off(last + 1);
    removed.clear();
    let parted = tail.first().is_none_or(|line| line.trim().is_empty());
    if parted && left.last().is_some_and(|line| line.trim().is_empty()) {
        left.pop();
    }
    left.extend(tail);
}

fn header() -> String {
    format!("[mcp_servers.{NAME}]")
}

/// Of our section or of a table inside it.
fn is_our_header(line: &str) -> bool {
    let line = line.trim();
    line == header() || line.starts_with(&format!("[mcp_servers.{NAME}."))
}

fn end_of_section(lines: &[String], first: usize) -> usize {
    let rest = lines[first + 1..].iter();
    let end = rest.clone().position(|line| line.trim_start().starts_with('['));
    end.map_or(lines.len(), |n| first + 1 + n)
}

fn gap(text: &str) -> &'static str {
    match text {
        "" => "",
        text if text.ends_with("\n\n") => "",
        text if text.ends_with('\n') => "\n",
        _ => "\n\n",
    }
}

/// Lists of several values get one line per value.
fn line(name: &str, value: &Value) -> String {
    match value {
        Value::Array(values) if values.len() > 1 => {
            let values: String = values.iter().map(|value| format!("  {value},\n")).collect();
            format!("{name} = [\n{values}]\n")
        }
        other => format!("{name} = {other}\n"),
    }
}

fn parse(text: &str) -> Result<Table, Error> {
    text.parse().map_err(|error: toml::de::Error| Error::NoToml(error.to_string()))
}

fn entry(table: &mut Table) -> Option<&mut Table> {
    let servers = table.entry("mcp_servers").or_insert(Value::Table(Table::new()));
    let ours = servers.as_table_mut()?.entry(NAME).or_insert(Value::Table(Table::new()));
    ours.as_table_mut()
}

/// Parses the edited text and compares it with what the configuration has to be. This is what makes a line-based
/// edit safe: a header inside a multi-line string, or an inline table, is refused instead of damaged.
fn checked(text: String, expected: &Table) -> Result<String, Error> {
    let mut expected = expected.clone();
    let mut found = parse(&text).map_err(|_| Error::NoSection)?;
    // An empty `mcp_servers` and none mean the same.
    for table in [&mut expected, &mut found] {
        table.retain(|name, value| {
            name != "mcp_servers" || value.as_table().is_none_or(|servers| !servers.is_empty())
        });
    }
    if found == expected { Ok(text) } else { Err(Error::NoSection) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours(program: &str) -> String {
        let variables = variables::all().into_iter();
        let variables: String = variables.map(|name| format!("  \"{name}\",\n")).collect();
        format!(
            "[mcp_servers.asyncagents]\ncommand = \"{program}\"\nargs = [\"mcp\"]\n\
             default_tools_approval_mode = \"approve\"\nenv_vars = [\n{variables}]\n"
        )
    }

    fn add(text: &str, program: &str) -> Result<String, Error> {
        add_server(text, &Server::Program(program))
    }

    /// Add, add again, add with another program, remove: nothing but the section changes.
    fn check(before: &str, after: &str, out: &str) {
        assert_eq!(add(before, "/bin/asyncagents").unwrap(), after);
        assert_eq!(add(after, "/bin/asyncagents").unwrap(), after, "once is enough");
        let newer = add(after, "/new/asyncagents").unwrap();
        assert_eq!(newer, after.replace("/bin/", "/new/"), "the newest one instead");
        assert_eq!(remove_server(after).unwrap().unwrap(), out);
        assert_eq!(remove_server(out), Ok(None), "once is enough");
    }

    #[test]
    fn everything_else_is_kept_byte_for_byte() {
        let ours = ours("/bin/asyncagents");
        check("", &ours, "");
        let mine = "# mine\nmodel = 'x'  # why\n";
        check(mine, &format!("{mine}\n{ours}"), mine);
        check("model = 'x'", &format!("model = 'x'\n\n{ours}"), "model = 'x'\n");
        let around = format!("[a]\nb = 1\n\n{ours}\n# of c\n[c]\nd = 2\n");
        check(&around, &around, "[a]\nb = 1\n\n# of c\n[c]\nd = 2\n");
        let nested = format!(
            "{ours}startup_timeout_sec = 30\n\n[mcp_servers.asyncagents.env]\nA = \"b\"\n\n  \
             [mcp_servers.other]\n  command = \"x\"\n"
        );
        check(&nested, &nested, "\n  [mcp_servers.other]\n  command = \"x\"\n");
    }

    #[test]
    fn what_the_user_chose_for_approvals_and_variables_is_kept() {
        let before = "[mcp_servers.asyncagents]\ncommand = 'old'\ndefault_tools_approval_mode = \
                      'prompt'\nenv_vars = []\n";
        let after = "[mcp_servers.asyncagents]\ncommand = \"/bin/asyncagents\"\nargs = [\"mcp\"]\n\
                     default_tools_approval_mode = 'prompt'\nenv_vars = []\n";
        check(before, after, "");
    }

    #[test]
    fn an_entry_over_http_has_an_address_and_a_header_instead_of_a_program() {
        let put = |text: &str, url: &str| {
            let authorization = "Bearer secret".to_owned();
            add_server(text, &Server::Address { url: url.to_owned(), authorization })
        };
        let after = "a = 1\n\n[mcp_servers.asyncagents]\nurl = \"http://one/mcp\"\nhttp_headers = { \
                     Authorization = \"Bearer secret\" }\ndefault_tools_approval_mode = \"approve\"\n";
        assert_eq!(put("a = 1\n", "http://one/mcp").unwrap(), after);
        assert_eq!(put(after, "http://one/mcp").unwrap(), after, "once is enough");
        assert_eq!(put(after, "http://two/mcp").unwrap(), after.replace("one", "two"));
        assert_eq!(remove_server(after).unwrap().unwrap(), "a = 1\n");
        assert_eq!(add(after, "p"), Err(Error::OtherWay));
        assert_eq!(put(&ours("p"), "http://one/mcp"), Err(Error::OtherWay));
    }

    #[test]
    fn a_file_that_cannot_be_edited_line_by_line_is_refused() {
        let inline = "mcp_servers = { asyncagents = { command = 'x' } }\n";
        assert_eq!(add(inline, "p"), Err(Error::NoSection));
        assert_eq!(remove_server(inline), Err(Error::NoSection));
        let dotted = "mcp_servers.asyncagents.command = 'x'\n";
        assert_eq!(add(dotted, "p"), Err(Error::NoSection));
        assert_eq!(add("mcp_servers = 1\n", "p"), Err(Error::NoSection));
        let text = "a = '''\n[mcp_servers.asyncagents]\n'''\n";
        assert_eq!(add(text, "p"), Err(Error::NoSection));
        assert_eq!(remove_server(text), Ok(None));
        assert!(matches!(add("a = ", "p"), Err(Error::NoToml(_))));
    }
}
